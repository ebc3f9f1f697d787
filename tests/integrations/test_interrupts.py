"""An interrupt while documents are read: no frame keeps clean values, and what was paid for is not lost."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import DocumentsNotRead
from scoreshield.privacy.ledger import Ledger
from scoreshield.search import PrivateSearch
from scoreshield.stores import ArrayStore

N, D = 12, 5
ROWS = np.random.default_rng(4).standard_normal((N, D)).astype(np.float32)
IDS = [f"n{place}" for place in range(N)]
SECRET = "a sentence that nobody may see"


class Source:
    """Gives documents by their ids, one of them at any time, more only while it is not interrupted."""

    def __init__(self, make: Callable[[str], Any], error: type[BaseException]) -> None:
        self.make, self.error, self.interrupted = make, error, True

    def read(self, ids: Sequence[str]) -> list[Any]:
        held = [self.make(one) for one in ids]
        if len(held) > 1 and self.interrupted:
            raise self.error
        return held


def search_in(folder: Path) -> tuple[PrivateSearch, Any]:
    account = Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=10, delta=0).account("notes")
    return PrivateSearch(ArrayStore(ROWS, ids=IDS), epsilon=1, mode="query", ledger=account), account


def langchain(folder: Path, error: type[BaseException]) -> tuple[Source, Any, Callable[[], Any]]:
    documents = pytest.importorskip("langchain_core.documents")
    embeddings = pytest.importorskip("langchain_core.embeddings")
    from scoreshield.integrations.langchain import PrivateRetriever

    search, account = search_in(folder)
    source = Source(lambda one: documents.Document(id=one, page_content=SECRET), error)
    model = embeddings.DeterministicFakeEmbedding(size=D)
    retriever = PrivateRetriever.from_search(search, model, source.read, k=3)
    return source, account, lambda: retriever.invoke("query")


def llama_index(folder: Path, error: type[BaseException]) -> tuple[Source, Any, Callable[[], Any]]:
    schema = pytest.importorskip("llama_index.core.schema")
    from scoreshield.integrations.llama_index import PrivateRetriever
    from scoreshield.integrations.llama_index_nodes import NodeSource

    search, account = search_in(folder)
    source = Source(lambda one: schema.TextNode(id_=one, text=SECRET), error)
    retriever = PrivateRetriever(search, lambda one: source.read([one])[0], similarity_top_k=3)
    retriever._core.source = NodeSource(lambda ids: dict(zip(ids, source.read(ids), strict=True)))
    query = schema.QueryBundle("query", embedding=ROWS[0].tolist())
    return source, account, lambda: retriever.retrieve(query)


def haystack(folder: Path, error: type[BaseException]) -> tuple[Source, Any, Callable[[], Any]]:
    module = pytest.importorskip("haystack")
    from scoreshield.integrations.haystack import PrivateRetriever

    _, account = search_in(folder)
    rows = dict(zip(IDS, ROWS.tolist(), strict=True))
    source = Source(lambda one: module.Document(id=one, content=SECRET, embedding=rows[one]), error)

    class Store:
        def filter_documents(self, filters: dict[str, Any] | None = None) -> list[Any]:
            return source.read(filters["value"]) if filters else [source.make(one) for one in IDS]

        def count_documents(self) -> int:
            return N

    retriever = PrivateRetriever(Store(), epsilon=1, mode="query", ledger=account, top_k=3)  # type: ignore[arg-type]
    return source, account, lambda: retriever.run(ROWS[0].tolist())["documents"]


def variables(error: BaseException) -> Iterator[Any]:
    """Of every frame within the package that the error passed through."""
    trace = error.__traceback__
    while trace is not None:
        if "scoreshield" in Path(trace.tb_frame.f_code.co_filename).parts:
            yield from trace.tb_frame.f_locals.values()
        trace = trace.tb_next


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, ConnectionError])
@pytest.mark.parametrize("framework", [langchain, llama_index, haystack])
def test_interrupt(framework: Any, error: Any, tmp_path: Path) -> None:
    """An interrupt keeps no clean value and loses no paid answer."""
    source, account, ask = framework(tmp_path, error)
    with pytest.raises(DocumentsNotRead if error is ConnectionError else error) as caught:
        ask()
    held = list(variables(caught.value))
    assert held
    assert not [one for one in held if isinstance(one, np.ndarray) or SECRET in repr(one)]
    assert account.spent == 1
    source.interrupted = False
    assert len(ask()) == 3
    assert account.spent == 1
    assert len(ask()) == 3
    assert account.spent == 2


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
@pytest.mark.parametrize(
    ("framework", "makes"),
    [(langchain, "langchain.Document"), (llama_index, "llama_index.copy_node"), (haystack, "haystack.replace")],
    ids=["langchain", "llama_index", "haystack"],
)
def test_translation_fails(
    framework: Any, makes: str, error: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A charged ranking is kept also where the framework's own objects cannot be made of it."""
    source, account, ask = framework(tmp_path, ConnectionError)
    source.interrupted = False

    def fail(*_: Any, **__: Any) -> Any:
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(f"scoreshield.integrations.{makes}", fail)
        with pytest.raises(error):
            ask()
    assert account.spent == 1
    assert len(ask()) == 3
    assert account.spent == 1
