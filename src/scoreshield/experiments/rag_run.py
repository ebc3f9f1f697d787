"""One DP-RAG evaluation in a folder, from files to judged answers, which goes on after a kill and releases only once.

The protocol is that of `scoreshield.tasks.rag`. The folder holds ``settings.json``, ``embeddings`` (private, a file for
every few hundred texts), ``retrieval.json`` (kept before any model is asked), ``answers`` (a file each), and at the end
``results.json`` and ``results.csv``. A folder that was made with other settings is refused, and left as it is; only a
generator may be added to a run that had none.
"""

from __future__ import annotations

import csv
import hashlib
import io as text_io
import itertools
import json
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield import io
from scoreshield.data.embedders import Embedder, embed_cached
from scoreshield.data.embedders import embedder as embedder_named
from scoreshield.errors import FileError, InvalidInput
from scoreshield.experiments.runner import only_one
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.tasks import rag
from scoreshield.tasks.chat import ChatModel
from scoreshield.tasks.chunks import OVERLAP, SIZE, chunk_documents
from scoreshield.tasks.rag_files import answerable, read_corpus, read_questions
from scoreshield.tasks.rag_retrieval import ReleaseFor, table

Mechanism = Literal["gaussian", "laplace", "staircase", "optimal", "screening", "index"]
#: Opens a bar for one stage of the work, by its name.
Bar = Callable[[str], AbstractContextManager[Progress | None]]

_BLOCK = 256  # texts that are embedded, and kept, at once
_NOT_ANSWERING: dict[str, Any] = dict.fromkeys(("generator", "judge", "conditions", "max_tokens"))


@dataclass(frozen=True)
class Releasing:
    """What is released, for each question or (an index) for all, and by which rule it is read.

    Attributes
    ----------
    epsilon, delta : of one release.
    threshold, k, paper_rule : as in :func:`scoreshield.tasks.rag.retrieve`; screening applies the threshold itself.
    research_seed : None for the secure sampler; a seed repeats and is not private.
    """

    mechanism: Mechanism
    epsilon: float
    delta: float = 0.0
    threshold: float = rag.SETTINGS[0].threshold
    k: int = rag.SETTINGS[0].k
    paper_rule: bool = False
    research_seed: int | None = None

    def check(self) -> None:
        """Refuse what cannot be kept before hours of embedding, by trying it on two public pages."""
        if self.mechanism == "screening" and self.delta:
            raise InvalidInput(f"Screening is pure: leave delta out. Got {self.delta:g}.")
        if self.mechanism in ("screening", "index") and self.paper_rule:
            raise InvalidInput(f"The paper's rule is for noisy scores: leave it out with {self.mechanism!r}.")
        pages = {"one": "page", "another": "page"}
        corpus = rag.Corpus(pages, chunk_documents(pages), np.eye(2))
        rule = (self.threshold, self.k)
        rag.retrieve(corpus, np.eye(2)[0], "private", setting=rule, release=self.on(corpus.embeddings, 0))

    def on(self, rows: NDArray[Any], seed: int | None) -> ReleaseFor:
        """What makes a release over ``rows`` for a query."""
        numbers = itertools.count()

        def rng() -> np.random.Generator | None:
            return None if seed is None else np.random.default_rng([seed, next(numbers)])

        if self.mechanism == "index":
            index = ss.release_index(rows, epsilon=self.epsilon, delta=self.delta, rng=rng())
            return lambda _: index
        if self.mechanism == "screening":
            return lambda query: ss.release_matches(rows, query, self.threshold, epsilon=self.epsilon, rng=rng())
        return lambda query: ss.release_scores(
            rows, query, epsilon=self.epsilon, delta=self.delta, mechanism=self.mechanism, rng=rng()
        )


@dataclass(frozen=True)
class Answering:
    """Who answers and who judges, each a model's name and its server's address, and in which conditions.

    ``max_tokens``, ``timeout`` and ``retries`` are those of :class:`scoreshield.tasks.chat.ChatModel`, ``workers`` that
    of :func:`scoreshield.tasks.rag.evaluate_answers`.
    """

    generator: tuple[str, str]
    judge: tuple[str, str]
    conditions: tuple[str, ...] = rag.CONDITIONS
    max_tokens: int = 512
    timeout: float = 60.0
    retries: int = 5
    workers: int = 4

    def model(self, which: tuple[str, str], cache: Path | None = None) -> ChatModel:
        name, url = which
        return ChatModel(
            name, base_url=url, max_tokens=self.max_tokens, timeout=self.timeout, retries=self.retries, cache=cache
        )

    def settings(self) -> dict[str, Any]:
        """What answers depend on; addresses are shown without a password."""
        with self.model(self.generator) as generator, self.model(self.judge) as judge:
            shown = (repr(generator), repr(judge), list(self.conditions), self.max_tokens)
        return dict(zip(_NOT_ANSWERING, shown, strict=True))


@dataclass(frozen=True)
class RagRun:
    """What a run found; neither texts nor scores are in it.

    Attributes
    ----------
    facts : how many documents, chunks and questions there were, and how many questions were left out because not all
        of their documents are in the corpus.
    guarantee : of one release.
    answers : None without a generator.
    """

    facts: dict[str, int]
    guarantee: Guarantee
    retrieval: rag.RetrievalResult
    answers: rag.AnswerResult | None

    def to_dict(self, *, records: bool = True) -> dict[str, Any]:
        parts = {
            "retrieval": self.retrieval.to_dict(),
            "answers": None if self.answers is None else self.answers.to_dict(),
        }
        if not records:
            parts = {name: part and {k: v for k, v in part.items() if k != "records"} for name, part in parts.items()}
        return {"scope": rag.SCOPE, **self.facts, "guarantee_of_one_release": self.guarantee.to_dict(), **parts}

    def table(self) -> bytes:
        """CSV with one row a question and condition: its id, the chunks it got, best first, and the verdict."""
        buffer = text_io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(("id", "condition", "indices", "verdict"))
        for record in (self.answers or self.retrieval).records:
            verdict = record.verdict if isinstance(record, rag.AnswerRecord) else ""
            writer.writerow((record.question, record.condition, " ".join(map(str, record.indices)), verdict))
        return buffer.getvalue().encode()

    def __str__(self) -> str:
        lines = ["The guarantee of one release:", "", str(self.guarantee), *self._counts(), "", str(self.retrieval)]
        if self.answers is not None:
            found = self.answers.conditions.items()
            rows = [(name, _accuracy(a), _gain(a), a.correct + a.wrong + a.unparsed) for name, a in found]
            lines += ["", f"Answers by {self.answers.generator}, judged by {self.answers.judge}"]
            lines += [*table(("condition", "accuracy", "gain", "n"), rows), rag.SCOPE]
        return "\n".join(lines)

    def _counts(self) -> list[str]:
        counts = "{questions:,} questions, {chunks:,} chunks of {documents:,} documents.".format(**self.facts)
        without = self.facts["left_out"]
        left = f"Left out: {without:,} of {without + self.facts['answerable']:,} questions, whose documents are not "
        return [counts, *([left + "all in the corpus."] if without else [])]


def run(
    corpus: Path,
    questions: Path,
    out: Path,
    *,
    embedder: str | Embedder,
    releasing: Releasing,
    answering: Answering | None = None,
    size: int = SIZE,
    overlap: int = OVERLAP,
    limit: int | None = None,
    bar: Bar = lambda _: nullcontext(),
) -> RagRun:
    """Embed, retrieve, answer and judge, as far as that is not done yet, and write the results.

    Parameters
    ----------
    corpus, questions : files, for :func:`scoreshield.tasks.rag_files.read_corpus` and ``read_questions``.
    embedder : one, or its name (:func:`scoreshield.data.embedders.embedder`), which is loaded after the other checks.
    out : the run folder, made if it is not there. It is the curator's: it holds embeddings and clean retrieval.
    answering : None measures retrieval alone.
    limit : how many questions to take, the first ones.
    """
    releasing.check()
    documents, every = read_corpus(corpus), read_questions(questions)
    known = answerable(every, documents)
    asked = known[:limit]
    chunks = chunk_documents(documents, size=size, overlap=overlap)
    later = _NOT_ANSWERING if answering is None else answering.settings()
    maker = embedder_named(embedder) if isinstance(embedder, str) else embedder
    settings: dict[str, Any] = {"corpus": _digest(corpus), "questions": _digest(questions), "embedder": maker.name}
    settings |= {"size": size, "overlap": overlap, "limit": limit, **asdict(releasing)}
    _open(out, settings | later)
    with only_one(out / "settings.json"):
        with bar("embedding") as progress:
            rows = _embedded(maker, [chunk.titled for chunk in chunks], out, progress)
            queries = _embedded(maker, [question.text for question in asked], out)
        source = rag.Corpus(documents, chunks, rows)
        with bar("retrieving") as progress:
            retrieval, guarantee = _retrieved(out, source, asked, queries, releasing, progress)
        answers = None
        if answering is not None:
            with bar("answering") as progress:
                answers = _answered(out, source, asked, retrieval, answering, progress)
        facts = {"documents": len(documents), "chunks": len(chunks), "questions": len(asked)}
        facts |= {"answerable": len(known), "left_out": len(every) - len(known)}
        done = RagRun(facts, guarantee, retrieval, answers)
        _write({out / "results.json": _json(done.to_dict()), out / "results.csv": done.table()})
    return done


def _open(out: Path, settings: dict[str, Any]) -> None:
    """Make the run folder, or check that it was made with these settings, or with these and no generator."""
    path = out / "settings.json"
    try:
        out.mkdir(parents=True, exist_ok=True)
        before = json.loads(path.read_bytes()) if path.exists() else None
        strangers = before is None and any(not file.name.endswith(".part") for file in out.iterdir())
    except OSError as error:
        raise FileError(f"Cannot use the run folder {out}: {error.strerror}.") from None
    except ValueError:
        before, strangers = {}, False
    if strangers:
        raise InvalidInput(f"The folder {out} holds other files and no run; name an empty or a new one.")
    if before is not None and before not in (settings, settings | _NOT_ANSWERING):
        made = before if isinstance(before, dict) else {}
        changed = next((name for name, value in settings.items() if made.get(name) != value), "another version's")
        raise InvalidInput(
            f"The run folder {out} was made with other settings ({changed}); name another, or move it away."
        )
    if before != settings:
        _write({path: _json(settings)})


def _embedded(embedder: Embedder, texts: list[str], out: Path, progress: Progress | None = None) -> NDArray[np.float32]:
    """Embeddings, kept block by block, so that a run that is stopped loses one block at most."""
    parts = []
    for start in range(0, len(texts), _BLOCK):
        parts.append(embed_cached(embedder, texts[start : start + _BLOCK], out / "embeddings"))
        if progress is not None:
            progress(min(start + _BLOCK, len(texts)), len(texts))
    return np.concatenate(parts)


def _retrieved(
    out: Path,
    corpus: rag.Corpus,
    questions: tuple[rag.Question, ...],
    queries: NDArray[np.float32],
    releasing: Releasing,
    progress: Progress | None,
) -> tuple[rag.RetrievalResult, Guarantee]:
    """What was retrieved before, or else now, and the guarantee of one release."""
    path = out / "retrieval.json"
    if path.exists():
        try:
            kept = json.loads(path.read_bytes())
            return rag.RetrievalResult.from_dict(kept), Guarantee.from_dict(kept["guarantee"])
        except (OSError, ValueError, TypeError, KeyError):
            raise InvalidInput(
                f"{path} cannot be read, and retrieving again would release again: name another run folder."
            ) from None
    release = releasing.on(corpus.embeddings, releasing.research_seed)
    made: list[Guarantee] = []

    def noted(query: NDArray[np.float64]) -> ss.Release:
        released = release(query)
        if not made:  # all of them promise the same
            made.append(released.guarantee)
        return released

    rule = (releasing.threshold, releasing.k)
    result = rag.evaluate_retrieval(
        corpus, questions, queries, release=noted, setting=rule, paper_rule=releasing.paper_rule, progress=progress
    )
    _write({path: _json(result.to_dict() | {"guarantee": made[0].to_dict()})})
    return result, made[0]


def _answered(
    out: Path,
    corpus: rag.Corpus,
    questions: tuple[rag.Question, ...],
    retrieval: rag.RetrievalResult,
    answering: Answering,
    progress: Progress | None,
) -> rag.AnswerResult:
    cache = out / "answers"
    with answering.model(answering.generator, cache) as generator, answering.model(answering.judge, cache) as judge:
        return rag.evaluate_answers(
            corpus,
            questions,
            generator=generator,
            judge=judge,
            retrieval=retrieval,
            conditions=answering.conditions,
            workers=answering.workers,
            progress=progress,
        )


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise FileError(f"Cannot read {path}: {error.strerror}.") from None


def _json(content: dict[str, Any]) -> bytes:
    return json.dumps(content, indent=2).encode()


def _write(files: dict[Path, bytes]) -> None:
    def writer(content: bytes) -> Callable[[BinaryIO], object]:
        return lambda file: file.write(content)

    io.write_whole({path: writer(content) for path, content in files.items()})


def _accuracy(found: rag.Accuracy) -> str:
    """The share of matches, and between which two it lies where some verdicts could not be read."""
    shown = "-" if found.accuracy is None else f"{found.accuracy:.3f}"
    return shown + (f" ({found.lowest:.3f}..{found.highest:.3f})" if found.unparsed else "")


def _gain(found: rag.Accuracy) -> str:
    return "-" if found.gain is None else f"{found.gain:+.3f}"
