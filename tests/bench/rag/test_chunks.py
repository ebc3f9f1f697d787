"""Windows of tokens: exact slices that cover every token, with the asked overlap, for any text and tokenizer."""

from __future__ import annotations

import re
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scoreshield.bench.rag.chunks import Chunk, Document, chunk_documents, cut_tokens, find_tokens
from scoreshield.errors import InvalidInput

WORDS = "one two, three four five six seven eight nine ten"  # 11 tokens: ten words and a comma


def chunk(text: str, **options: Any) -> list[Chunk]:
    """The windows of one document without a title."""
    return chunk_documents({"": text}, **options)


def words(text: str) -> list[tuple[int, int]]:
    """A second tokenizer, for comparison: what stands between blanks."""
    return [match.span() for match in re.finditer(r"\S+", text)]


def tokens_of(text: str) -> list[str]:
    return [text[start:end] for start, end in find_tokens(text, None)]


def test_by_hand() -> None:
    assert tokens_of("Don't stop: 42 %") == ["Don", "'", "t", "stop", ":", "42", "%"]
    assert chunk(WORDS, size=5, overlap=2) == [
        Chunk(0, "", 0, 19, "one two, three four"),
        Chunk(0, "", 9, 34, "three four five six seven"),
        Chunk(0, "", 25, 49, "six seven eight nine ten"),
    ]


def test_windows_end_when_last_token() -> None:
    """Windows end when the last token is in."""
    text = "a b c d e f"
    assert [c.text for c in chunk(text, size=4, overlap=2)] == ["a b c d", "c d e f"]  # not also "e f"
    assert [c.text for c in chunk(text, size=3, overlap=0)] == ["a b c", "d e f"]
    assert [c.text for c in chunk(text, size=5, overlap=4)] == ["a b c d e", "b c d e f"]
    assert [c.text for c in chunk(text, size=6, overlap=5)] == ["a b c d e f"]
    assert [c.text for c in chunk("  a  ", size=1, overlap=0)] == ["a"]


def test_defaults_are_the_papers() -> None:
    text = " ".join(f"w{i}" for i in range(3801))
    found = chunk(text)
    assert [len(c.text.split()) for c in found] == [2000, 2000, 201]
    assert found[1].text.startswith("w1800 ")
    assert found[2].text.startswith("w3600 ")


@given(st.text(max_size=200).filter(lambda text: re.search(r"\S", text)), st.integers(1, 12), st.data(), st.booleans())
def test_properties(text: str, size: int, data: st.DataObject, pattern: bool) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    tokenizer = None if pattern else words
    spans = find_tokens(text, tokenizer)
    found = chunk(text, size=size, overlap=overlap, tokenizer=tokenizer)
    held = [[i for i, (a, b) in enumerate(spans) if c.start <= a and b <= c.end] for c in found]
    for c, inside in zip(found, held, strict=True):
        assert c.text == text[c.start : c.end]
        assert inside == list(range(inside[0], inside[-1] + 1))
    assert sorted({i for inside in held for i in inside}) == list(range(len(spans)))
    assert all(len(inside) == size for inside in held[:-1])
    assert len(held[-1]) <= size
    for before, after in pairwise(held):
        assert before[len(before) - overlap :] == after[:overlap]
        assert after[-1] > before[-1]


@given(st.text(max_size=200))
def test_default_tokens_hold_every_character(text: str) -> None:
    """Default tokens hold every character but blanks once."""
    spans = find_tokens(text, None)
    covered = [i for a, b in spans for i in range(a, b)]
    assert covered == [i for i, character in enumerate(text) if not character.isspace()]
    assert all(b - a <= 20 for a, b in spans)


def test_scripts_without_blanks_cut() -> None:
    """Scripts without blanks are cut by character."""
    assert tokens_of("東京tower東京") == ["東", "京", "tower", "東", "京"]
    assert tokens_of("한국") == ["한", "국"]
    assert tokens_of("x" * 45) == ["x" * 20, "x" * 20, "x" * 5]
    assert [c.text for c in chunk("naïve 🙂 café", size=2, overlap=1)] == ["naïve 🙂", "🙂 café"]


class FastTokenizer:
    """What a fast tokenizer of the transformers package takes and gives."""

    is_fast = True

    def __call__(self, text: str, **options: Any) -> dict[str, Any]:
        assert options == {"add_special_tokens": False, "return_offsets_mapping": True, "verbose": False}
        return {"input_ids": [], "offset_mapping": [(0, 0), *words(text)]}


class RawTokenizer:
    """What a tokenizer of the tokenizers package takes and gives."""

    def encode(self, text: str, *, add_special_tokens: bool) -> Any:
        assert not add_special_tokens
        return SimpleNamespace(offsets=words(text))


@pytest.mark.parametrize("tokenizer", [FastTokenizer(), RawTokenizer(), words], ids=["fast", "raw", "callable"])
def test_tokenizers_of_others(tokenizer: Any) -> None:
    assert [c.text for c in chunk(WORDS, size=6, overlap=1, tokenizer=tokenizer)] == [
        "one two, three four five six",
        "six seven eight nine ten",
    ]


def test_tokens_that_share_a_character() -> None:
    """A byte-level tokenizer may take two tokens for one character."""
    spans = [(0, 1), (0, 1), (1, 2), (2, 3)]
    assert [c.text for c in chunk("éab", size=2, overlap=1, tokenizer=lambda _: spans)] == ["é", "éa", "ab"]
    spans = [(0, 1), (1, 2), (1, 2), (1, 2)]
    assert [c.text for c in chunk("aé", size=2, overlap=1, tokenizer=lambda _: spans)] == ["aé"]  # not "é" twice more


def test_documents_keep_their_place_title() -> None:
    """Documents keep their place and title."""
    found = chunk_documents({"First": "a b c", "Second": "d"}, size=2, overlap=0)
    assert [(c.document, c.title, c.text) for c in found] == [
        (0, "First", "a b"),
        (0, "First", "c"),
        (1, "Second", "d"),
    ]
    assert found[2].titled == "Second\nd"
    assert chunk_documents([Document("First", "a b c"), Document("Second", "d")], size=2, overlap=0) == found


def test_first_tokens() -> None:
    assert cut_tokens(" one two, three", 3) == (" one two,", 3)
    assert cut_tokens(" one two, three ", 4) == (" one two, three ", 4)
    assert cut_tokens("one", 9) == ("one", 1)
    assert cut_tokens("one", 0) == ("", 0)
    assert cut_tokens("one two, three", 2, words) == ("one two,", 2)


class Slow:
    is_fast = False

    def __call__(self, text: str) -> list[tuple[int, int]]:
        return words(text)


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: chunk("a", size=0), "'size' parameter of chunk_documents"),
        (lambda: chunk("a", size=2.5), "'size' parameter"),
        (lambda: chunk("a", size=True), "'size' parameter"),
        (lambda: chunk("a", size=3, overlap=3), "smaller than the size, 3. Got 3"),
        (lambda: chunk("a", size=3, overlap=-1), "'overlap' parameter"),
        (lambda: chunk(""), "holds no token"),
        (lambda: chunk(" \n\t"), "holds no token"),
        (lambda: chunk(b"a"), "parameter of chunk_documents must be a string. Got 'bytes'"),  # type: ignore[arg-type]
        (lambda: chunk("a", tokenizer=3), "'tokenizer' parameter"),
        (lambda: chunk("a", tokenizer=Slow()), "'tokenizer' parameter"),
        (lambda: chunk("a", tokenizer=lambda _: None), "'tokenizer' parameter"),
        (lambda: chunk("a", tokenizer=lambda text: text.split()), "'tokenizer' parameter"),
        (lambda: chunk("ab", tokenizer=lambda _: [(1, 2), (0, 1)]), "other pairs"),
        (lambda: chunk("ab", tokenizer=lambda _: [(0, 3)]), "other pairs"),
        (lambda: chunk("ab", tokenizer=lambda _: [(2, 1)]), "other pairs"),
        (lambda: chunk_documents({}), "'documents' parameter of chunk_documents"),
        (lambda: chunk_documents("text"), "'documents' parameter"),  # type: ignore[arg-type]
        (lambda: chunk_documents(["text"]), "'documents' parameter"),  # type: ignore[list-item]
        (lambda: chunk_documents({"A": "a", "B": " "}), "Document 1 ('B') holds no token"),
        (lambda: chunk_documents({"A": None}), "'text of a document' parameter"),  # type: ignore[dict-item]
        (lambda: chunk_documents({1: "a"}), "'title of a document' parameter"),  # type: ignore[dict-item]
        (lambda: chunk_documents([Document("A", "a"), Document("A", "b")]), "have the title 'A'"),
        (lambda: cut_tokens("a", -1), "'limit' parameter of cut_tokens"),
    ],
)
def test_refusals(call: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=re.escape(says)) as caught:
        call()
    assert str(caught.value).count("\n") == 0
