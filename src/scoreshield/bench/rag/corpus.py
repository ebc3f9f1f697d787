"""What DP-RAG is evaluated on: documents in chunks, one embedding per chunk, questions, and their files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard

from numpy.typing import ArrayLike, NDArray

from scoreshield import _loading, _validation
from scoreshield._validation import validate
from scoreshield.bench.data import archives
from scoreshield.bench.data.texts import read_frames
from scoreshield.bench.rag.chunks import Chunk, Document, check_documents
from scoreshield.errors import FileError, InvalidInput
from scoreshield.geometry import embeddings as _embeddings

#: Characters of a title, which goes with every chunk of its page.
LONGEST_TITLE = 1000


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
    """Check for questions with distinct ids whose documents are in the corpus."""
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


# ---- Files.


def read_corpus(path: str | Path) -> tuple[Document, ...]:
    """Read pages from a file with one JSON object per line, each with a "title" of its own and a "text"."""
    documents: dict[str, Document] = {}
    for where, record in _read_objects(Path(path)):
        title, text = record.get("title"), record.get("text")
        if not (_is_text(title) and _is_text(text)):
            raise InvalidInput(f"{where}: a page must have a 'title' and a 'text', both texts that are not blank.")
        if len(title) > LONGEST_TITLE:
            raise InvalidInput(f"{where}: a title has at most {LONGEST_TITLE:,} characters. Got {len(title):,}.")
        if title in documents:
            raise InvalidInput(f"{where}: the title {title[:80]!r} comes twice; questions name pages by their titles.")
        documents[title] = Document(title, text)
    if not documents:
        raise InvalidInput(f"{path} holds no page; a page is a line with a JSON object of 'title' and 'text'.")
    return tuple(documents.values())


def read_questions(path: str | Path) -> tuple[Question, ...]:
    """Read questions, from the official FRAMES ``test.tsv`` or from JSON lines.

    A line of a ``.jsonl`` is an object with "id" (a text or a whole number), "question", "answer" and "documents", a
    list of titles. FRAMES questions are numbered from 0, as in its first column, and their titles are made of the links
    (`scoreshield.bench.data.texts.read_frames`).
    """
    suffix = Path(path).suffix.lower()
    if suffix == ".tsv":
        return _read_frames_questions(Path(path))
    if suffix == ".jsonl":
        return _read_json_questions(Path(path))
    raise InvalidInput(f"{path} must be the FRAMES test.tsv or a .jsonl file, by its ending.")


def select_answerable(questions: Sequence[Question], documents: Sequence[Document]) -> tuple[Question, ...]:
    """Select the questions for which all documents are present, by title. If there are none, raise an error."""
    titles = {document.title for document in documents}
    found = tuple(question for question in questions if titles.issuperset(question.documents))
    if not found:
        missing = next((title for question in questions for title in question.documents if title not in titles), "")
        raise InvalidInput(
            f"None of the {len(questions)} questions has all its documents in the corpus, where titles must agree to "
            f"the letter; the first that is missing is {missing[:80]!r}."
        )
    return found


def _read_frames_questions(path: Path) -> tuple[Question, ...]:
    if not path.exists():
        raise FileError(f"There is no file {path}.")
    data = read_frames(path)
    assert data.titles is not None
    assert data.answers is not None
    found = []
    for number, (text, answer, pages) in enumerate(zip(data.queries, data.answers, data.relevant, strict=True)):
        if not answer:
            raise InvalidInput(f"{path}: question {number} has no answer.")
        found.append(Question(str(number), text, answer, tuple(data.titles[page] for page in pages)))
    return tuple(found)


def _read_json_questions(path: Path) -> tuple[Question, ...]:
    questions: dict[str, Question] = {}
    for where, record in _read_objects(path):
        text, answer, documents = record.get("question"), record.get("answer"), record.get("documents")
        name = record.get("id")
        if isinstance(name, int) and not isinstance(name, bool):
            name = str(name)
        if not (_is_text(name) and _is_text(text) and _is_text(answer)):
            raise InvalidInput(f"{where}: a question must have an 'id', a 'question' and an 'answer', none blank.")
        if not isinstance(documents, list) or not documents or not all(map(_is_text, documents)):
            raise InvalidInput(f"{where}: a question must have 'documents', a list of titles that is not empty.")
        if name in questions:
            raise InvalidInput(f"{where}: the id {name[:80]!r} comes twice; give each question its own.")
        questions[name] = Question(name, text, answer, tuple(documents))
    if not questions:
        raise InvalidInput(f"{path} holds no question.")
    return tuple(questions.values())


def _read_objects(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Read the objects of a file of JSON lines, each with the words that say where it is."""
    content = _loading.read_stream(path)
    for number, line in archives.split_lines(content, str(path)):
        where = f"{path}, line {number}"
        try:
            record = _loading.parse_json(line)
        except ValueError:
            record = None
        if not isinstance(record, dict):
            raise InvalidInput(f"{where}: a line must be a JSON object.")
        yield where, record


def _is_text(value: object) -> TypeGuard[str]:
    """Return whether this is a text that is not blank and that UTF-8 can encode (JSON allows lone surrogates)."""
    return isinstance(value, str) and bool(value.strip()) and not any("\ud800" <= c <= "\udfff" for c in value)
