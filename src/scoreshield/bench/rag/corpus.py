"""What DP-RAG is evaluated on: documents cut into chunks, one embedding a chunk, and questions with their answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import validate
from scoreshield.bench.rag.chunks import Chunk, Document, check_documents
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings


@dataclass(frozen=True)
class Question:
    """A question with its reference answer and the titles of the documents that hold what it takes."""

    id: str
    text: str
    answer: str
    documents: tuple[str, ...]


@dataclass(frozen=True, eq=False, repr=False)
class Corpus:
    """One index for all questions: the documents, their chunks, and one embedding a chunk, made of ``chunk.titled``."""

    documents: tuple[Document, ...]
    chunks: tuple[Chunk, ...]
    embeddings: NDArray[Any]

    @validate()
    def __init__(
        self,
        documents: Mapping[str, str] | Sequence[Document],
        chunks: Sequence[Chunk],
        embeddings: ArrayLike,
    ) -> None:
        found = check_documents(documents)
        rows = _embeddings.as_rows(embeddings)
        if not isinstance(chunks, Sequence) or not all(isinstance(item, Chunk) for item in chunks):
            _validation.reject("chunks", "a list of Chunk", chunks)
        if len(chunks) != len(rows):
            _validation.reject("embeddings", f"one row for each of the {len(chunks)} chunks", rows)
        for number, item in enumerate(chunks):
            if not 0 <= item.document < len(found) or found[item.document].title != item.title:
                raise InvalidInput(f"Chunk {number} of Corpus does not come from its documents: cut these ones again.")
        object.__setattr__(self, "documents", found)
        object.__setattr__(self, "chunks", tuple(chunks))
        object.__setattr__(self, "embeddings", rows)

    def __repr__(self) -> str:
        return f"<Corpus: {len(self.documents):,} documents, {len(self.chunks):,} chunks>"


def check_questions(questions: object, corpus: object) -> None:
    """Questions whose needed documents are in the corpus, each with its own id."""
    if not isinstance(corpus, Corpus):
        _validation.reject("corpus", "a Corpus", type(corpus).__name__)
    must = "a list of Question, not empty"
    if not isinstance(questions, Sequence) or not questions or not all(isinstance(q, Question) for q in questions):
        _validation.reject("questions", must, questions)
    titles = {document.title for document in corpus.documents}
    seen: set[str] = set()
    for place, question in enumerate(questions):
        for text in (question.id, question.text, question.answer):
            if not isinstance(text, str) or not text.strip():
                raise InvalidInput(f"Question {place} must have an id, a text and an answer, none empty.")
        if question.id in seen:
            raise InvalidInput(f"Two questions have the id {question.id!r}; give each its own.")
        seen.add(question.id)
        if (
            not isinstance(question.documents, tuple)
            or not question.documents
            or not titles.issuperset(question.documents)
        ):
            raise InvalidInput(
                f"Question {question.id!r} must name at least one document, as a tuple of titles that "
                "are in the corpus."
            )
