"""The package as its users see it: imports, one retrieval, what is written and read, and the README."""

from __future__ import annotations

import os
import re
from pathlib import Path

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"

import numpy as np
import pytest
from haystack import Document, Pipeline
from haystack.document_stores.in_memory import InMemoryDocumentStore
from haystack_integrations.components.retrievers import scoreshield as package
from haystack_integrations.components.retrievers.scoreshield import PrivateRetriever

import scoreshield as ss
from scoreshield.integrations import haystack

ROOT = Path(__file__).resolve().parents[1]
PATH = "haystack_integrations.components.retrievers.scoreshield.retriever.PrivateRetriever"
VECTORS = np.random.default_rng(1).standard_normal((20, 16))


@pytest.fixture
def store() -> InMemoryDocumentStore:
    filled = InMemoryDocumentStore()
    filled.write_documents(
        [
            Document(id=str(number), content=f"text {number}", embedding=vector.tolist())
            for number, vector in enumerate(VECTORS)
        ]
    )
    return filled


def ask(pipeline: Pipeline, number: int) -> list[Document]:
    answer = pipeline.run({"retriever": {"query_embedding": VECTORS[number].tolist()}})
    return answer["retriever"]["documents"]  # type: ignore[no-any-return]


def build(retriever: PrivateRetriever) -> Pipeline:
    pipeline = Pipeline()
    pipeline.add_component("retriever", retriever)
    return pipeline


def test_public_names() -> None:
    """The retriever is one of scoreshield, and the folders above it are namespaces that other packages share."""
    assert package.__all__ == ["PrivateRetriever"]
    assert issubclass(PrivateRetriever, haystack.PrivateRetriever)
    folder = Path(package.__file__).parent
    assert (folder / "py.typed").is_file()
    assert not any((above / "__init__.py").exists() for above in list(folder.parents)[:3])


def test_retrieval(store: InMemoryDocumentStore) -> None:
    """At a large epsilon the best document is found, and states its guarantee."""
    options = {"epsilon": 3e4, "delta": 1e-6, "mechanism": "gaussian"}
    found = ask(build(PrivateRetriever(store, top_k=3, **options)), 7)
    assert found[0].content == "text 7"
    assert len(found) == 3
    assert all(one.meta["scoreshield"]["epsilon"] == 3e4 for one in found)


def test_serialisation(store: InMemoryDocumentStore, tmp_path: Path) -> None:
    """A pipeline is read back under the path of this package, without allowed_modules, and with its saved index."""
    pipeline = build(PrivateRetriever(store, epsilon=40, file=tmp_path / "index.npz", top_k=3))
    found = ask(pipeline, 3)
    text = pipeline.dumps()
    assert f"type: {PATH}" in text
    again = Pipeline.loads(text)
    assert type(again.get_component("retriever")) is PrivateRetriever
    assert ask(again, 3) == found


def test_serialised_tables(store: InMemoryDocumentStore) -> None:
    """A level table is read back under the path of this package."""
    table = ss.randomised_response(8, [0.3, 0.5, 0.7])
    retriever = PrivateRetriever(store, epsilon=8, mode="query", mechanism=table, rng=0)
    again = Pipeline.loads(build(retriever).dumps()).get_component("retriever")
    assert again.to_dict() == retriever.to_dict()


@pytest.mark.filterwarnings("ignore")
def test_readme() -> None:
    """The code of the README runs."""
    (code,) = re.findall(r"^```python\n(.*?)^```$", (ROOT / "README.md").read_text("utf-8"), re.DOTALL | re.MULTILINE)
    exec(compile(code, "README.md", "exec"), {})
