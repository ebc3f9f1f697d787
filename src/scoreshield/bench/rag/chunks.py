r"""Documents cut into overlapping windows of tokens, as the paper's DP-RAG protocol does (2000 tokens, 200 shared).

A window is an exact slice of its document, so that what is embedded, retrieved and shown is the same text. One
chunk is one record of the private collection: with an overlap, a sentence may lie in two records, and a guarantee for
the replacement of one record covers one of them.

Tokens come from a tokenizer of the caller's (the embedding model's, for the paper's numbers) or, without one, from a
pattern that needs no download: a run of up to 20 word characters, a single Chinese, Japanese or Korean character, or a
single mark. It counts about as an embedding model's tokenizer does, and not exactly.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeAlias

from scoreshield import _validation
from scoreshield._validation import validate, whole_from
from scoreshield.errors import InvalidInput

Offsets: TypeAlias = list[tuple[int, int]]
#: A callable from a text to (start, end) pairs, or a fast tokenizer of the transformers or tokenizers package.
Tokenizer: TypeAlias = Any

SIZE, OVERLAP = 2000, 200  # the paper's, in tokens

# Scripts that write no spaces: kana, the common ideographs, and Hangul syllables. One character is about one token.
_UNSPACED = r"\u3040-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7af"
_TOKEN = re.compile(rf"[{_UNSPACED}]|(?:(?![{_UNSPACED}])\w){{1,20}}|[^\w\s]")


@dataclass(frozen=True)
class Document:
    """A text and the title it is known by."""

    title: str
    text: str


@dataclass(frozen=True)
class Chunk:
    """A window of the document at place ``document``; ``text`` is that document's text from ``start`` to ``end``."""

    document: int
    title: str
    start: int
    end: int
    text: str

    @property
    def titled(self) -> str:
        """What is embedded: the title, a line break, and the text."""
        return f"{self.title}\n{self.text}"


@validate()
def chunk_documents(
    documents: Mapping[str, str] | Sequence[Document],
    *,
    size: int = SIZE,
    overlap: int = OVERLAP,
    tokenizer: Tokenizer = None,
) -> list[Chunk]:
    """Cut documents into windows of at most ``size`` tokens, each sharing ``overlap`` tokens with the one before.

    Every token is in a window, and no window lies within the one before.

    Args:
        documents: A mapping from titles to texts, or a list of `Document`. Each text must hold a token.
        size: The most tokens of a window.
        overlap: How many tokens two neighbouring windows share.
        tokenizer: A callable that gives the (start, end) places of the tokens in a text, or a fast tokenizer of the
            transformers or tokenizers package; None for the pattern that the module describes.
    """
    size, overlap = _check_sizes(size, overlap)
    return [
        window
        for place, document in enumerate(check_documents(documents))
        for window in _cut_windows(document, place, size, overlap, tokenizer)
    ]


@validate(limit=whole_from(0))
def cut_tokens(text: str, limit: int, tokenizer: Tokenizer = None) -> tuple[str, int]:
    """Cut a text after its token number ``limit``, and return how many tokens are left too."""
    spans = find_tokens(_check_string(text, "text"), tokenizer)
    if len(spans) <= limit:
        return text, len(spans)
    return (text[: spans[limit - 1][1]] if limit else ""), limit


def check_documents(documents: object) -> tuple[Document, ...]:
    """Check for documents, in either form, whose titles differ."""
    must = "a dict of titles and texts or a list of Document, not empty"
    if isinstance(documents, Mapping):
        found = [Document(title, text) for title, text in documents.items()]
    elif isinstance(documents, Sequence) and all(isinstance(item, Document) for item in documents):
        found = list(documents)
    else:
        _validation.reject("documents", must, documents)
    if not found:
        _validation.reject("documents", must, documents)
    titles: set[str] = set()
    for document in found:
        _check_string(document.text, "text of a document")
        if _check_string(document.title, "title of a document") in titles:
            raise InvalidInput(
                f"Two documents have the title {document.title[:80]!r}; give each document its own title."
            )
        titles.add(document.title)
    return tuple(found)


def find_tokens(text: str, tokenizer: Tokenizer) -> Offsets:
    """Find where the tokens of a text begin and end, in characters; tokens without extent are left out."""
    if tokenizer is None:
        return [match.span() for match in _TOKEN.finditer(text)]
    must = "a callable that gives increasing (start, end) pairs inside the text, or a fast tokenizer"
    if getattr(tokenizer, "is_fast", None) is True:  # transformers
        found = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True, verbose=False)["offset_mapping"]
    elif not callable(tokenizer) and callable(getattr(tokenizer, "encode", None)):  # tokenizers
        found = getattr(tokenizer.encode(text, add_special_tokens=False), "offsets", None)
    elif callable(tokenizer) and getattr(tokenizer, "is_fast", None) is None:
        found = tokenizer(text)
    else:
        _validation.reject("tokenizer", must, type(tokenizer).__name__)
    try:
        spans = [(int(start), int(end)) for start, end in found]
    except (TypeError, ValueError):
        _validation.reject("tokenizer", must, type(found).__name__)
    spans = [(start, end) for start, end in spans if start != end]
    # Tokens may share a character (parts of one that takes several bytes), but neither end may go back.
    inside = all(0 <= start < end <= len(text) for start, end in spans)
    onward = all(a <= c and b <= d for (a, b), (c, d) in pairwise(spans))
    if not (inside and onward):
        _validation.reject("tokenizer", must, "other pairs")
    return spans


def _cut_windows(document: Document, place: int, size: int, overlap: int, tokenizer: Tokenizer) -> list[Chunk]:
    spans = find_tokens(document.text, tokenizer)
    if not spans:
        raise InvalidInput(f"Document {place} ({document.title[:80]!r}) holds no token, so there is nothing to cut.")
    windows: list[Chunk] = []
    for first in range(0, len(spans), size - overlap):
        start, end = spans[first][0], spans[min(first + size, len(spans)) - 1][1]
        if windows and end == windows[-1].end:  # all of it is in the window before
            continue
        windows.append(Chunk(place, document.title, start, end, document.text[start:end]))
    return windows


def _check_sizes(size: object, overlap: object) -> tuple[int, int]:
    length = _validation.check_count(size, "size")
    shared = _validation.check_count(overlap, "overlap", least=0)
    if shared >= length:
        _validation.reject("overlap", f"smaller than the size, {length}", overlap)
    return length, shared


def _check_string(value: object, name: str) -> str:
    if not isinstance(value, str):
        _validation.reject(name, "a string", type(value).__name__)
    return value
