"""The package as its users see it: imports, one retrieval, what is written and read, and the README."""

from __future__ import annotations

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
from llama_index.core import VectorStoreIndex
from llama_index.core.base.embeddings.base import BaseEmbedding
from llama_index.core.retrievers import BaseRetriever
from llama_index.core.schema import TextNode
from llama_index.core.vector_stores.types import BasePydanticVectorStore
from llama_index.retrievers import scoreshield as package
from llama_index.retrievers.scoreshield import PrivateRetriever, PrivateVectorStore

from scoreshield.errors import InvalidInput
from scoreshield.integrations import llama_index

ROOT = Path(__file__).resolve().parents[1]


class NumberEmbedding(BaseEmbedding):
    """The number of a text is a direction of its own."""

    def _get_text_embedding(self, text: str) -> list[float]:
        return np.random.default_rng(int(text.split()[1])).standard_normal(16).tolist()

    _get_query_embedding = _get_text_embedding

    async def _aget_query_embedding(self, query: str) -> list[float]:
        return self._get_text_embedding(query)


@pytest.fixture
def index() -> VectorStoreIndex:
    nodes = [TextNode(text=f"text {number}", id_=str(number)) for number in range(20)]
    return VectorStoreIndex(nodes, embed_model=NumberEmbedding())


def test_public_names() -> None:
    """The names are those of scoreshield, LlamaIndex's own kinds, and in a namespace that other packages share."""
    assert sorted(package.__all__) == ["PrivateRetriever", "PrivateVectorStore"]
    assert PrivateRetriever is llama_index.PrivateRetriever
    assert PrivateVectorStore is llama_index.PrivateVectorStore
    assert issubclass(PrivateRetriever, BaseRetriever)
    assert issubclass(PrivateVectorStore, BasePydanticVectorStore)
    folder = Path(package.__file__).parent
    assert (folder / "py.typed").is_file()
    assert not (folder.parent / "__init__.py").exists()
    assert not (folder.parent.parent / "__init__.py").exists()


def test_retrieval(index: VectorStoreIndex) -> None:
    """At a large epsilon the best node is found, and states its guarantee."""
    options = {"epsilon": 3e4, "delta": 1e-6, "mechanism": "gaussian"}
    found = PrivateRetriever.from_index(index, similarity_top_k=3, **options).retrieve("text 7")
    assert found[0].node.get_content() == "text 7"
    assert len(found) == 3
    assert all(one.node.metadata["scoreshield"]["epsilon"] == 3e4 for one in found)


def test_serialisation(index: VectorStoreIndex, tmp_path: Path) -> None:
    """Answers and private indexes are written and read; objects with vectors are not."""
    retriever = PrivateRetriever.from_index(index, epsilon=40, file=tmp_path / "index.npz")
    found = retriever.retrieve("text 3")
    assert [TextNode.from_dict(one.node.to_dict()) for one in found] == [one.node for one in found]
    again = PrivateRetriever.from_index(index, epsilon=40, file=tmp_path / "index.npz")
    assert [one.node_id for one in again.retrieve("text 3")] == [one.node_id for one in found]
    for private in (retriever, PrivateVectorStore.from_index(index, epsilon=40)):
        with pytest.raises(InvalidInput, match="not pickled"):
            pickle.dumps(private)


@pytest.mark.filterwarnings("ignore")
def test_readme() -> None:
    """The code of the README runs."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(code, "README.md", "exec"), {})
