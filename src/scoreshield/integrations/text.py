"""Embed texts so that a row depends on its own text alone, and find whether a model needs that.

A text model that is given many texts at once pads them to one length and multiplies them as one block. Both change the
last bits of a row with the *other* texts of the call. A guarantee is about replacing one row of a collection. If one
text moves several rows, the guarantee is not about replacing one text. `embed_rows` encodes one text per call, so
that the shapes of the computation are those of the text itself. `find_batch_effect` shows whether a given model
moves other rows.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation
from scoreshield._frames import clear_frames_on_error
from scoreshield._validation import validate
from scoreshield.errors import InvalidInput
from scoreshield.geometry.arrays import Progress

__all__ = ["BatchEffect", "embed_rows", "find_batch_effect"]

#: From a list of texts to one row per text: an array, a tensor, or a list of vectors.
Encode = Callable[[list[str]], Any]

_WORDS = (
    "the a of and in to with for old new first last long short river harbour winter summer morning letter garden "
    "station bridge paper answer question teacher engine village market window music bread stone field opens closes "
    "carries finds repairs forgets describes measures slowly often never again "
)
#: Many words and one word: both change the padding of the other texts of a call.
_REPLACEMENTS = (_WORDS * 8, "river")
_SAMPLE = 64


@dataclass(frozen=True)
class BatchEffect:
    """The effect of replacing one text of a call on the rows of the other texts.

    Attributes:
        rows: How many texts were encoded together.
        moved: How many of their rows had other bits after *another* text was replaced.
        largest_change: The largest change of an entry of these rows.
        is_repeatable: Whether the same call gave the same bits twice. Where it did not, rows also move without any
            replacement, and this check does not distinguish the two.
    """

    rows: int
    moved: int
    largest_change: float
    is_repeatable: bool

    def __bool__(self) -> bool:
        """Whether any row moved."""
        return self.moved > 0

    def __str__(self) -> str:
        if not self.is_repeatable:
            return "The same texts gave other bits in a second call: rows do not depend on their own texts alone."
        if not self.moved:
            return f"Replacing one of {self.rows:,} texts moved no other row."
        return (
            f"Replacing one of {self.rows:,} texts moved {self.moved:,} other rows, by at most "
            f"{self.largest_change:.1e}: encode one text per call, as embed_rows does."
        )


@clear_frames_on_error
@validate()
def embed_rows(encode: Encode, texts: Sequence[str], progress: Progress | None = None) -> NDArray[Any]:
    """Encode texts one per call, so that each row depends on its own text alone.

    Args:
        encode: From a list of texts to their rows: ``SentenceTransformer.encode``, ``embed_documents`` of a LangChain
            model, ``get_text_embedding_batch`` of a LlamaIndex one, or any function like them.
        texts: The texts, at least one.
        progress: Called with (texts so far, texts in all).

    Returns:
        One row for each text, in their order, in double precision: a model that gives one text in another number type
        than the rest must not change the type of all.

    Raises:
        InvalidInput: If a call does not give one row of real numbers, or rows differ in length.
    """
    if not callable(encode):
        _validation.reject("encode", "a function from a list of texts to their rows", type(encode))
    checked = check_texts(texts, "texts")
    rows = []
    for place, text in enumerate(checked, start=1):
        rows.append(encode_batch(encode, [text])[0])
        if rows[-1].shape != rows[0].shape:
            raise InvalidInput("The model must give rows of one length for all texts.")
        if progress is not None:
            progress(place, len(checked))
    return np.stack(rows, dtype=np.float64)


@clear_frames_on_error
@validate()
def find_batch_effect(encode: Encode, texts: Sequence[str] | None = None) -> BatchEffect:
    """Encode texts together, replace one of them, and compare the bits of the other rows.

    One text is replaced at a time, first by a much longer one and then by a single word; eight calls in all. A result
    without moved rows is evidence for these texts on this machine, not a proof.

    Args:
        encode: As in `embed_rows`. To check how you embed, give what you call: with its batch size and options.
        texts: At least two; without them, 64 made-up sentences of different lengths. With private texts the result is
            private too.

    Example:
        >>> find_batch_effect(lambda texts: [[len(text), 1.0] for text in texts]).moved
        0
    """
    sample = _write_sentences() if texts is None else check_texts(texts, "texts")
    if len(sample) < 2:
        _validation.reject("texts", "at least two texts", sample)
    before = encode_batch(encode, sample)
    is_repeatable = not _compare_rows(before, encode_batch(encode, sample)).any()
    moved, largest = np.zeros(len(sample), dtype=bool), 0.0
    for place in sorted({0, len(sample) // 2, len(sample) - 1}):
        for replacement in _REPLACEMENTS:
            after = encode_batch(encode, [*sample[:place], replacement, *sample[place + 1 :]])
            changed = _compare_rows(before, after)
            changed[place] = False
            moved |= changed
            if changed.any():
                largest = max(largest, float(np.abs(before - after)[changed].max()))
    return BatchEffect(len(sample), int(moved.sum()), largest, is_repeatable)


def encode_batch(encode: Encode, texts: list[str]) -> NDArray[Any]:
    """Encode texts in one call, and check that there is one row of real numbers per text."""
    rows = as_array(encode(list(texts)))
    if rows.ndim != 2 or len(rows) != len(texts) or rows.dtype.kind != "f":
        raise InvalidInput(f"The model must encode {len(texts):,} texts as {len(texts):,} rows of real numbers.")
    return rows


def as_array(vectors: Any) -> NDArray[Any]:
    """Convert tensors of any device and precision, lists of them, and whatever NumPy reads, to an array."""
    if isinstance(vectors, list | tuple) and vectors and hasattr(vectors[0], "detach"):
        return np.stack([as_array(one) for one in vectors])
    if hasattr(vectors, "detach"):
        dense = vectors.detach().to_dense() if vectors.is_sparse else vectors.detach()
        return np.asarray((dense.float() if dense.dtype.itemsize < 4 else dense).cpu().numpy())
    return _validation.check_array(vectors, "embeddings", "a matrix of real numbers")


def check_texts(texts: Any, name: str) -> list[str]:
    """Check a list of at least one text. The message says its length and nothing of its content."""
    must = "a list of at least one string"
    if isinstance(texts, str):
        _validation.reject(name, must, str)
    if not isinstance(texts, Sequence) or not len(texts) or not all(isinstance(one, str) for one in texts):
        _validation.reject(name, must, texts)
    return list(texts)


def _compare_rows(before: NDArray[Any], after: NDArray[Any]) -> NDArray[np.bool_]:
    """Return which rows have other bits."""
    if before.shape != after.shape:
        raise InvalidInput("The model must give rows of one length for all texts.")
    return np.array([one.tobytes() != other.tobytes() for one, other in zip(before, after, strict=True)])


def _write_sentences() -> list[str]:
    """Write sentences of 1 to 40 words, the same each time."""
    rng = random.Random(0)  # public examples
    return [" ".join(rng.choices(_WORDS.split(), k=1 + 7 * place % 40)) for place in range(_SAMPLE)]
