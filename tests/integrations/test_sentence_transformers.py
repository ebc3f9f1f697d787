"""The sentence-transformers helper: the shape is the package's own, scores are released, and it pays when it says."""

from __future__ import annotations

import asyncio
import copy
import logging
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scoreshield.errors import BudgetExceeded, InvalidInput, ScoreShieldError, StoreError
from scoreshield.integrations.sentence_transformers import PrivateCorpus, semantic_search
from scoreshield.privacy.ledger import Ledger

N, D = 30, 6
ROWS = np.random.default_rng(5).standard_normal((N, D)).astype(np.float32)
UNITS = ROWS / np.linalg.norm(ROWS, axis=1, keepdims=True)
QUERIES = UNITS[[7, 3]]
BEST = np.argsort(-(UNITS @ QUERIES.T), axis=0).T.tolist()
#: So much budget that the noise is below the gaps between scores: the released order is then the clean one.
PLENTY = 500.0
TEXTS = [f"row {number}" for number in range(N)]


class Model:
    """Embeds the text "row i" as row i; counts what it encodes."""

    def __init__(self) -> None:
        self.encoded = 0

    def encode(self, sentences: list[str], normalize_embeddings: bool = False) -> np.ndarray:
        assert isinstance(sentences, list)
        self.encoded += len(sentences)
        rows = ROWS[[int(text.split()[-1]) for text in sentences]]
        return rows / np.linalg.norm(rows, axis=1, keepdims=True) if normalize_embeddings else rows


class Prompted(Model):
    """A model with prompts: queries are encoded another way than documents."""

    def encode_document(self, sentences: list[str], normalize_embeddings: bool = False) -> np.ndarray:
        return self.encode(sentences, normalize_embeddings)

    def encode_query(self, sentences: list[str], normalize_embeddings: bool = False) -> np.ndarray:
        return -self.encode(sentences, normalize_embeddings)


def ledger(folder: Path, epsilon: float = 10.0) -> Any:
    return Ledger.create(f"sqlite:///{folder / 'ledger.db'}", epsilon=epsilon, delta=0.0).account("notes")


def ids(found: Any) -> list[int]:
    return [one["corpus_id"] for one in found]


# ---- semantic_search.


def test_package_shape() -> None:
    """With plenty of budget the shape and the answers are those of the package."""
    util = pytest.importorskip("sentence_transformers.util")
    torch = pytest.importorskip("torch")
    plain = util.semantic_search(torch.tensor(QUERIES), torch.tensor(ROWS), top_k=4)
    found = semantic_search(torch.tensor(QUERIES), torch.tensor(ROWS), epsilon=PLENTY, top_k=4)
    assert isinstance(found, list)
    assert [ids(one) for one in found] == [ids(one) for one in plain] == [best[:4] for best in BEST]
    for ours, theirs in zip(found, plain, strict=True):
        assert [one.keys() for one in ours] == [one.keys() for one in theirs]
        assert {type(one["corpus_id"]) for one in ours} == {int}
        np.testing.assert_allclose([one["score"] for one in ours], [one["score"] for one in theirs], atol=0.02)


def test_tensors_arrays_and_lists_are_read_alike() -> None:
    """Tensors, arrays and lists are read alike."""
    torch = pytest.importorskip("torch")
    tensor = torch.tensor(ROWS, requires_grad=True)
    corpora = (ROWS, tensor, tensor.double(), ROWS.tolist(), list(tensor), tensor.to_sparse(), tensor.half())
    for corpus in corpora:
        assert ids(semantic_search(QUERIES[0], corpus, epsilon=PLENTY, top_k=3)[0]) == BEST[0][:3]
    for queries in (
        QUERIES,
        torch.tensor(QUERIES),
        QUERIES.tolist(),
        list(torch.tensor(QUERIES)),
        torch.tensor(QUERIES).bfloat16(),
    ):
        found = semantic_search(queries, ROWS, epsilon=PLENTY, top_k=1)
        assert [ids(one) for one in found] == [[7], [3]]


def test_scores_and_guarantee() -> None:
    """Scores are estimates in the range, in order, and carry the guarantee."""
    (found,) = semantic_search(QUERIES[0], ROWS, epsilon=1, top_k=100)
    scores = [one["score"] for one in found]
    assert len(found) == N
    assert scores == sorted(scores, reverse=True)
    assert 0 < max(map(abs, scores)) < 1.0
    assert (found.guarantee.epsilon, found.guarantee.delta, found.guarantee.sampler) == (1.0, 0.0, "exact")


def test_each_call_is_a_release_and_charged(tmp_path: Path) -> None:
    """Each call is a release and charged."""
    account = ledger(tmp_path)
    for _ in range(2):
        semantic_search(QUERIES, ROWS, epsilon=2, ledger=account)
    assert account.spent == pytest.approx(4)  # an index for both queries of a call
    semantic_search(QUERIES, ROWS, epsilon=1, mode="query", ledger=account)
    assert account.spent == pytest.approx(6)
    with pytest.raises(BudgetExceeded):
        semantic_search(QUERIES, ROWS, epsilon=2.5, mode="query", ledger=account)
    assert account.spent == pytest.approx(6)


@pytest.mark.parametrize("name", ["score_function", "query_chunk_size", "corpus_chunk_size"])
def test_dropped_parameters(name: str) -> None:
    """Other parameters of the package are rejected."""
    with pytest.raises(InvalidInput, match=f"'{name}' in a private semantic_search is rejected"):
        semantic_search(QUERIES, ROWS, epsilon=1, **{name: 3})


def test_bad_input() -> None:
    """Bad input raises an error of one sentence."""
    with pytest.raises(TypeError, match="epsilon"):
        semantic_search(QUERIES, ROWS)  # type: ignore[call-arg]
    for make in (semantic_search, PrivateCorpus):
        with pytest.raises(InvalidInput, match=f"'nonsense' parameter of {make.__name__} is unknown"):
            make(
                QUERIES if make is semantic_search else Model(),
                ROWS if make is semantic_search else TEXTS,
                epsilon=1,
                nonsense=1,
            )
    for corpus in ([], np.zeros((3, 0)), ROWS[0], None, "text", [[1.0], [1.0, 2.0]], np.array([["a"]])):
        with pytest.raises(InvalidInput, match="embeddings"):
            semantic_search(QUERIES, corpus, epsilon=1)
    with pytest.raises(StoreError, match="not finite"):
        semantic_search(QUERIES, np.where(np.eye(N, D), np.nan, ROWS), epsilon=1)
    assert len(semantic_search(QUERIES, ROWS * 0, epsilon=1)) == len(QUERIES)  # zero rows have a direction too
    for query in ([1.0], QUERIES * np.nan, QUERIES * 0, None, np.zeros((0, D))):
        with pytest.raises(InvalidInput, match="query"):
            semantic_search(query, ROWS, epsilon=1)
    for bad in (0, 1.5, True, None):
        with pytest.raises(InvalidInput, match="top_k"):
            semantic_search(QUERIES, ROWS, epsilon=1, top_k=bad)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="'centroids' parameter of semantic_search is rejected"):
        semantic_search(QUERIES, ROWS, epsilon=1, identity_of=str, centroids=True)


def test_wrong_queries(tmp_path: Path) -> None:
    """A call whose queries are wrong is not charged."""
    account = ledger(tmp_path)
    for query in (QUERIES[:, :3], QUERIES * np.nan, QUERIES * 0, np.zeros((0, D)), None, [["a"] * D], QUERIES[None]):
        for mode in ("index", "query"):
            with pytest.raises(InvalidInput, match="query"):
                semantic_search(query, ROWS, epsilon=1, ledger=account, mode=mode)
    for wrong in ({"top_k": 0}, {"nonsense": 1}, {"file": tmp_path / "index.npz"}, {"mode": "nonsense"}):
        with pytest.raises(InvalidInput):
            semantic_search(QUERIES, ROWS, epsilon=1, ledger=account, **wrong)  # type: ignore[arg-type]
    assert account.spent == 0


def test_file_without_ids(tmp_path: Path) -> None:
    """A file is rejected where a corpus has no ids."""
    with pytest.raises(InvalidInput, match="'file' in semantic_search is rejected: a file of vectors without ids"):
        semantic_search(QUERIES, ROWS, epsilon=1, file=tmp_path / "index.npz")
    assert not list(tmp_path.iterdir())


# ---- PrivateCorpus.


def test_corpus_search() -> None:
    """A corpus is searched by one text, by lists and asynchronously."""
    corpus = PrivateCorpus(Model(), TEXTS, epsilon=PLENTY)
    found = corpus.search("row 7", 4)
    assert ids(found) == BEST[0][:4]
    assert [one["text"] for one in found] == [TEXTS[one] for one in BEST[0][:4]]
    assert [ids(one) for one in corpus.search(["row 7", "row 3"], 4)] == [best[:4] for best in BEST]
    assert ids(asyncio.run(corpus.asearch("row 3", 4))) == BEST[1][:4]
    above = corpus.search("row 7", N, threshold=0.5)
    assert ids(above) == [one for one in BEST[0] if UNITS[one] @ UNITS[7] >= 0.5]
    assert found.guarantee.epsilon == corpus.private_search.guarantee.epsilon == PLENTY
    assert (len(corpus), repr(corpus)) == (N, "<PrivateCorpus of 30 sentences, 'index'>")
    assert repr(PrivateCorpus.__new__(PrivateCorpus)) == "<PrivateCorpus of 0 sentences, 'nothing'>"


def test_a_model_with_prompts_gets_them() -> None:
    """A model with prompts gets them."""
    corpus = PrivateCorpus(Prompted(), TEXTS, epsilon=PLENTY)
    assert ids(corpus.search("row 7", 3)) == BEST[0][::-1][:3]


def test_corpus_file(tmp_path: Path) -> None:
    """A corpus is charged once, encoded once, and keeps no clean vector."""
    account, model = ledger(tmp_path), Model()
    options: dict[str, Any] = {"epsilon": 4, "ledger": account, "file": tmp_path / "corpus.npz"}
    corpus = PrivateCorpus(model, TEXTS, **options)
    assert model.encoded == N + 1  # one sentence tells the dimension
    first = corpus.search("row 7")
    assert corpus.search("row 7") == first
    assert account.spent == pytest.approx(4)
    assert corpus.private_search._search._records.store._fresh is None  # type: ignore[attr-defined]
    model = Model()
    again = PrivateCorpus(model, TEXTS, **options)
    assert model.encoded == 1
    assert again.search("row 7") == first
    assert account.spent == pytest.approx(4)
    with pytest.raises(InvalidInput, match="an index of 30 numbered rows, and now there are 29"):
        PrivateCorpus(model, TEXTS[1:], **options)


def test_ids_in_any_order(tmp_path: Path) -> None:
    """Sentences with ids are found in a file in any order."""
    account, names = ledger(tmp_path, epsilon=2 * PLENTY), [f"note-{number}" for number in range(N)]
    options: dict[str, Any] = {"epsilon": PLENTY, "ledger": account, "file": tmp_path / "corpus.npz"}
    first = PrivateCorpus(Model(), TEXTS, ids=names, **options).search("row 7", 3)
    assert [(one["corpus_id"], one["id"], one["text"]) for one in first] == [
        (place, names[place], TEXTS[place]) for place in BEST[0][:3]
    ]
    model = Model()
    turned = PrivateCorpus(model, TEXTS[::-1], ids=names[::-1], **options)
    assert model.encoded <= 1  # to check the dimension
    again = turned.search("row 7", 3)
    assert [(one["id"], one["text"], one["score"]) for one in again] == [
        (one["id"], one["text"], one["score"]) for one in first
    ]
    assert ids(again) == [N - 1 - place for place in BEST[0][:3]]
    for sentences, others in (
        (TEXTS, [f"letter-{number}" for number in range(N)]),  # another corpus of the same size
        (TEXTS, [*names[:-1], "letter"]),
        (TEXTS[1:], names[1:]),
        ([*TEXTS, "row 0"], [*names, "more"]),
        (TEXTS, None),
    ):
        with pytest.raises(InvalidInput, match=r"index|names none of these records"):
            PrivateCorpus(Model(), sentences, ids=others, **options)
    assert account.spent == pytest.approx(PLENTY)


def test_wrong_ids(tmp_path: Path) -> None:
    """Wrong ids are rejected before anything is encoded."""
    model, account = Model(), ledger(tmp_path)
    for wrong in ("x" * N, range(N - 1), [1] * N, [1.5, *range(1, N)], [True, *range(1, N)], [[1]] * N, 3):
        with pytest.raises(InvalidInput, match="'ids' parameter of PrivateCorpus must be 30 different whole numbers"):
            PrivateCorpus(model, TEXTS, epsilon=1, ids=wrong, ledger=account)  # type: ignore[arg-type]
    assert (model.encoded, account.spent) == (0, 0)
    found = PrivateCorpus(model, TEXTS, epsilon=PLENTY, ids=np.arange(N) + 100).search("row 7", 1)  # type: ignore[arg-type]
    assert [(one["corpus_id"], one["id"]) for one in found] == [(7, 107)]


@pytest.mark.parametrize("mode", ["query", "screening"])
def test_joint_charge(mode: str, tmp_path: Path) -> None:
    """Queries that are charged are charged together."""
    account = ledger(tmp_path, epsilon=2.5)
    options: dict[str, Any] = {"threshold": 0.0} if mode == "screening" else {}
    corpus = PrivateCorpus(Model(), TEXTS, epsilon=1, mode=mode, ledger=account, **options)
    with pytest.raises(BudgetExceeded):
        corpus.search(["row 1", "row 2", "row 3"])
    assert account.spent == 0
    assert len(corpus.search(["row 1", "row 2"], 3)) == 2
    assert account.spent == pytest.approx(2)


def test_package_model() -> None:
    """A model of the package works."""
    pytest.importorskip("sentence_transformers")
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    model = SentenceTransformer(modules=[BoW(vocab=["cat", "dog", "fish", "garden", "house", "sea"])], device="cpu")
    corpus = PrivateCorpus(model, ["dog house", "fish sea", "cat garden"], epsilon=PLENTY)
    assert [one["text"] for one in corpus.search("fish", 1)] == ["fish sea"]
    assert [ids(one) for one in corpus.search(["dog", "cat"], 1)] == [[0], [2]]


def test_bad_corpora() -> None:
    """A bad corpus raises an error of one sentence."""

    class Wrong(Model):
        def encode(self, sentences: list[str], normalize_embeddings: bool = False) -> Any:
            return super().encode(sentences, normalize_embeddings)[0]

    class Broken(Model):
        def encode(self, sentences: list[str], normalize_embeddings: bool = False) -> Any:
            raise RuntimeError(f"secret {sentences} {normalize_embeddings}")

    for sentences in ([], "text", None, [1, 2], ["a", None]):
        with pytest.raises(InvalidInput, match="'sentences' parameter of PrivateCorpus must be a list"):
            PrivateCorpus(Model(), sentences, epsilon=1)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="takes a model with an 'encode' method"):
        PrivateCorpus(None, TEXTS, epsilon=1)
    with pytest.raises(InvalidInput, match=r"must encode \d+ texts as \d+ rows"):
        PrivateCorpus(Wrong(), TEXTS, epsilon=1)
    with pytest.raises(StoreError, match=r"The corpus failed while being encoded \(RuntimeError\)") as caught:
        PrivateCorpus(Broken(), TEXTS, epsilon=1)
    assert "secret" not in str(caught.value)
    with pytest.raises(InvalidInput, match="pin='scores' for a PrivateCorpus is rejected"):
        PrivateCorpus(Model(), TEXTS, epsilon=1, mode="query", rng=1, pin="scores")
    corpus = PrivateCorpus(Model(), TEXTS, epsilon=1)
    for query in ([], None, [3]):
        with pytest.raises(InvalidInput, match=r"'query' parameter of PrivateCorpus\.search"):
            corpus.search(query)  # type: ignore[arg-type]


# ---- Nothing around the noise.


def test_copies_logs_and_errors_hold_nothing(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """Copies, logs and errors hold no clean value."""
    caplog.set_level(logging.DEBUG)
    clean = {f"{value:.5f}" for value in np.concatenate([ROWS.ravel(), UNITS.ravel(), (UNITS @ UNITS.T).ravel()])}

    def tells(text: str) -> bool:
        return any(value in text for value in clean)

    assert tells(str([f"{value:.7f}" for value in UNITS[3]]))
    account = ledger(tmp_path, epsilon=1)
    corpus = PrivateCorpus(Model(), TEXTS, epsilon=2, mode="query", ledger=account)
    for spread in (pickle.dumps, copy.copy, copy.deepcopy):
        with pytest.raises(InvalidInput, match="not pickled"):
            spread(corpus)
    for work in (
        lambda: corpus.search("row 7"),
        lambda: semantic_search(QUERIES, ROWS, epsilon=2, mode="query", ledger=account),
        lambda: semantic_search(QUERIES, ROWS, epsilon=2, ledger=account),
        lambda: semantic_search(QUERIES, ROWS * np.nan, epsilon=2),
    ):
        handled = sys.exception()  # by the test runner, which may call tests while it handles one
        with pytest.raises(ScoreShieldError) as caught:
            work()
        assert caught.value.__context__ is handled
        assert not tells(str(caught.value))
        trace = caught.tb
        while trace is not None:
            if trace.tb_frame.f_code.co_filename != __file__:
                values = list(trace.tb_frame.f_locals.values())
                assert not [one for one in values if isinstance(one, np.ndarray) and len(one) == N]
                assert not tells(repr([one for one in values if isinstance(one, list | tuple | dict)]))
            trace = trace.tb_next
    assert not tells(repr(corpus) + repr(vars(corpus)["_search"]) + caplog.text)
