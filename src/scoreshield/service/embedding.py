"""Text queries: the embedder of a collection makes vectors of them, as it made the vectors of the records.

An embedder is "hashing", which needs no model, or "module:function", a function from a list of texts to their rows.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield.errors import InvalidInput
from scoreshield.integrations.text import encode_batch
from scoreshield.service.problems import ServiceProblem

_TOKEN = re.compile(r"\w+|[^\w\s]")
_EXAMPLE = "an example"


class TextEmbedder:
    """Makes the vector of a text query. The same text must get the same numbers: other numbers are another query."""

    def __init__(self, encode: Callable[[list[str]], Any], dimension: int) -> None:
        self._encode, self._dimension = encode, dimension

    def embed(self, text: str) -> list[float]:
        """Embed one text by itself, so that its numbers depend on it alone.

        Raises:
            ServiceProblem: The embedder failed. Its own message may hold the text, so it is not shown.
        """
        try:
            row: NDArray[Any] = encode_batch(self._encode, [text])[0]
        except Exception:
            raise ServiceProblem("embedder_failed") from None
        if len(row) != self._dimension or not np.isfinite(row).all():
            raise ServiceProblem("embedder_failed")
        values: list[float] = row.tolist()
        return values


def make_text_embedder(collection: str, kind: str, dimension: int) -> TextEmbedder:
    """Make the embedder of a collection, and try it on a public text.

    Raises:
        InvalidInput: It cannot be imported, or gives vectors of another dimension than those of the collection.
    """
    if kind == "hashing":
        return TextEmbedder(partial(hash_texts, dimension=dimension), dimension)
    module, _, name = kind.partition(":")
    try:
        encode = getattr(importlib.import_module(module), name)
    except Exception:
        raise InvalidInput(f"The embedder {kind} of collection {collection} cannot be imported.") from None
    made = TextEmbedder(encode, dimension)
    try:
        made.embed(_EXAMPLE)
    except ServiceProblem:
        raise InvalidInput(
            f"The embedder {kind} of collection {collection} must make rows of {dimension} numbers from texts."
        ) from None
    return made


def hash_texts(texts: Sequence[str], dimension: int) -> NDArray[np.float64]:
    """Embed texts by signed hashes of their words and pairs of words. It needs no model and knows no meaning.

    The vectors of a collection whose policy says ``embedder: hashing`` come from this function. Rows have length one;
    the row of a blank text is zero.

    Args:
        texts: The texts.
        dimension: The length of each row.
    """
    rows = np.zeros((len(texts), dimension))
    for row, text in zip(rows, texts, strict=True):
        words = _TOKEN.findall(text.lower())
        # k words and their k - 1 pairs are an odd number of signs, which cannot all cancel: only a blank row is zero.
        for token in [*words, *(f"{one} {two}" for one, two in itertools.pairwise(words))]:
            number = int.from_bytes(hashlib.blake2b(token.encode("utf-8", "replace"), digest_size=8).digest())
            row[(number >> 1) % dimension] += 1 if number & 1 else -1
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    hashed: NDArray[np.float64] = rows / np.where(lengths == 0, 1, lengths)
    return hashed
