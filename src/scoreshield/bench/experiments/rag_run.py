"""One DP-RAG evaluation in a folder, from files to judged answers. A killed run can be resumed, and releases only once.

The protocol is that of `scoreshield.bench.rag.evaluation`. The folder holds ``settings.json``, ``embeddings`` (private,
a file for every few hundred texts), ``retrieval.json`` (written before anything is measured or a model is called),
``answers`` (a file each), and at the end ``results.json`` and ``results.csv``. A folder that was made with other
settings is rejected and left as it is; only a generator may be added to a run that had none.
"""

from __future__ import annotations

import csv
import io as text_io
import itertools
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield import _files, _validation
from scoreshield._files import RunFolder
from scoreshield._types import AccountLike
from scoreshield.bench.data.embedders import Embedder, embed_cached
from scoreshield.bench.data.embedders import embedder as embedder_named
from scoreshield.bench.experiments import rag_folder
from scoreshield.bench.rag import evaluation
from scoreshield.bench.rag.chat import ChatModel
from scoreshield.bench.rag.chunks import OVERLAP, SIZE, chunk_documents
from scoreshield.bench.rag.corpus import read_corpus, read_questions, select_answerable
from scoreshield.bench.rag.retrieval import ReleaseFactory, align_columns, measure_rankings, retrieve_all
from scoreshield.errors import InvalidInput
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.guarantee import Guarantee

Mechanism = Literal["gaussian", "laplace", "staircase", "optimal", "screening", "index"]
#: Opens a bar for one stage of the work, by its name.
Bar = Callable[[str], AbstractContextManager[Progress | None]]

_BLOCK = 256  # texts that are embedded, and kept, at once
_OF_TEXTS, _OF_IMAGES = ("sentence-transformers", "hashing"), ("timm", "dlib")  # families of embedders
#: Parameters of a request that a server may not know.
LEAVABLE = ("temperature", "max_tokens", "seed")


@dataclass(frozen=True)
class ReleaseSettings:
    """What is released, for each question or (an index) for all, and by which rule it is read.

    Attributes:
        epsilon: The epsilon of one release.
        delta: The delta of one release.
        threshold: The least score of a retrieved chunk; screening applies it itself.
        k: The most chunks per question.
        paper_rule: As in `scoreshield.bench.rag.evaluation.retrieve`.
        research_seed: None for the secure sampler; a seed repeats and is not private.
    """

    mechanism: Mechanism
    epsilon: float
    delta: float = 0.0
    threshold: float = evaluation.SETTINGS[0].threshold
    k: int = evaluation.SETTINGS[0].k
    paper_rule: bool = False
    research_seed: int | None = None

    def check(self) -> None:
        """Raise an error for impossible settings before hours of embedding, by a trial on two public pages."""
        if self.mechanism == "screening" and self.delta:
            raise InvalidInput(f"Screening is pure: leave delta out. Got {self.delta:g}.")
        if self.mechanism in ("screening", "index") and self.paper_rule:
            raise InvalidInput(f"The paper's rule is for noisy scores: leave it out with {self.mechanism!r}.")
        pages = {"one": "page", "another": "page"}
        corpus = evaluation.Corpus(pages, chunk_documents(pages), np.eye(2))
        rule = (self.threshold, self.k)
        evaluation.retrieve(
            corpus, np.eye(2)[0], "private", setting=rule, release=self.make_factory(corpus.embeddings, 0)
        )

    def make_factory(self, rows: NDArray[Any], seed: int | None, ledger: AccountLike | None = None) -> ReleaseFactory:
        """Make a function from a query to a release over ``rows``, charged before its noise is drawn."""
        numbers = itertools.count()

        def rng() -> np.random.Generator | None:
            return None if seed is None else np.random.default_rng([seed, next(numbers)])

        if self.mechanism == "index":
            index = ss.release_index(rows, epsilon=self.epsilon, delta=self.delta, rng=rng(), ledger=ledger)
            return lambda _: index
        if self.mechanism == "screening":
            return lambda query: ss.release_matches(
                rows, query, self.threshold, epsilon=self.epsilon, rng=rng(), ledger=ledger
            )
        mechanism = cast("Any", self.mechanism)
        return lambda query: ss.release_scores(
            rows, query, epsilon=self.epsilon, delta=self.delta, mechanism=mechanism, rng=rng(), ledger=ledger
        )


@dataclass(frozen=True)
class AnswerSettings:
    """The models that answer and judge, each with its server's address, and the conditions.

    ``max_tokens``, ``timeout``, ``retries``, ``allow_http`` and ``proxy`` are those of
    `scoreshield.bench.rag.chat.ChatModel`, ``workers`` that of
    `scoreshield.bench.rag.evaluation.evaluate_answers`;
    ``leave_out`` names some of `LEAVABLE`.
    """

    generator: tuple[str, str]
    judge: tuple[str, str]
    conditions: tuple[str, ...] = evaluation.CONDITIONS
    max_tokens: int = 512
    timeout: float = 60.0
    retries: int = 5
    workers: int = 4
    allow_http: bool = False
    leave_out: tuple[str, ...] = ()
    proxy: str | None = field(default=None, repr=False)  # it may hold a password

    def make_model(self, which: tuple[str, str], cache: Path | None = None) -> ChatModel:
        name, url = which
        sent: dict[str, Any] = {"max_tokens": self.max_tokens}
        sent |= {_validation.check_option(left, "leave_out", LEAVABLE): None for left in self.leave_out}
        return ChatModel(
            name,
            base_url=url,
            allow_http=self.allow_http,
            proxy=self.proxy,
            timeout=self.timeout,
            retries=self.retries,
            cache=cache,
            **sent,
        )

    def list_settings(self) -> dict[str, Any]:
        """List what answers depend on."""
        with self.make_model(self.generator) as generator, self.make_model(self.judge) as judge:
            shown = (repr(generator), repr(judge), list(self.conditions), self.max_tokens, sorted(self.leave_out))
        return dict(zip(rag_folder.NOT_ANSWERING, shown, strict=True))


@dataclass(frozen=True)
class RagRun:
    """What a run found; neither texts nor scores are in it.

    Attributes:
        facts: How many documents, chunks and questions there were, and how many questions were left out because not all
            of their documents are in the corpus.
        guarantee: The guarantee of one release.
        answers: None without a generator.
    """

    facts: dict[str, int]
    guarantee: Guarantee
    retrieval: evaluation.RetrievalResult
    answers: evaluation.AnswerResult | None

    def to_dict(self, *, records: bool = True) -> dict[str, Any]:
        parts = {
            "retrieval": self.retrieval.to_dict(),
            "answers": None if self.answers is None else self.answers.to_dict(),
        }
        if not records:
            parts = {name: part and {k: v for k, v in part.items() if k != "records"} for name, part in parts.items()}
        return {"scope": evaluation.SCOPE, **self.facts, "guarantee_of_one_release": self.guarantee.to_dict(), **parts}

    def write_csv(self) -> bytes:
        """Write CSV with one row per question and condition: its id, the verdict, and the chunks of private retrieval.

        The chunks of clean retrieval are only in ``to_dict``, with a sentence that says who may read them.
        """
        buffer = text_io.StringIO()
        writer = csv.writer(buffer, lineterminator="\n")
        writer.writerow(("id", "condition", "indices", "verdict"))
        for record in (self.answers or self.retrieval).records:
            verdict = record.verdict if isinstance(record, evaluation.AnswerRecord) else ""
            indices = " ".join(map(str, record.indices)) if record.condition == "private" else ""
            if verdict or record.condition == "private":
                writer.writerow((_files.csv_text(record.question), record.condition, indices, verdict))
        return buffer.getvalue().encode()

    def __str__(self) -> str:
        lines = ["The guarantee of one release:", "", str(self.guarantee), *self._counts(), "", str(self.retrieval)]
        if self.answers is not None:
            found = self.answers.conditions.items()
            rows = [(name, _format_accuracy(a), _format_gain(a), a.correct + a.wrong + a.unparsed) for name, a in found]
            lines += ["", f"Answers by {self.answers.generator}, judged by {self.answers.judge}"]
            lines += [*align_columns(("condition", "accuracy", "gain", "n"), rows), evaluation.SCOPE]
        return "\n".join(lines)

    def _counts(self) -> list[str]:
        counts = "{questions:,} questions, {chunks:,} chunks of {documents:,} documents.".format(**self.facts)
        without = self.facts["left_out"]
        left = f"Left out: {without:,} of {without + self.facts['answerable']:,} questions, whose documents are not "
        return [counts, *([left + "all in the corpus."] if without else [])]


def run_rag(
    corpus: Path,
    questions: Path,
    out: Path,
    *,
    embedder: str | Embedder,
    release_settings: ReleaseSettings,
    answer_settings: AnswerSettings | None = None,
    size: int = SIZE,
    overlap: int = OVERLAP,
    limit: int | None = None,
    ledger: AccountLike | None = None,
    bar: Bar = lambda _: nullcontext(),
) -> RagRun:
    """Embed, retrieve, answer and judge, as far as that is not done yet, and write the results.

    Args:
        corpus: The file of pages, for `scoreshield.bench.rag.corpus.read_corpus`.
        questions: The file of questions, for `scoreshield.bench.rag.corpus.read_questions`.
        embedder: One for texts, or its name (`scoreshield.bench.data.embedders.embedder`); loaded after the
            other checks.
        out: The run folder, made if it is not there. It is the curator's: it holds embeddings and clean retrieval.
        answer_settings: None measures retrieval alone.
        limit: How many questions to take, the first ones.
        ledger: ``ledger.account(name)``, charged for each release before its noise is drawn. A run that is stopped
            before it has retrieved for all questions keeps none of it, and is charged again.
    """
    _check_embedder(embedder)
    release_settings.check()
    if ledger is not None and release_settings.research_seed is not None:
        raise InvalidInput("A ledger takes no releases of research mode: leave out the seed or the ledger.")
    documents, every = read_corpus(corpus), read_questions(questions)
    known = select_answerable(every, documents)
    asked = known[:limit]
    chunks = chunk_documents(documents, size=size, overlap=overlap)
    later = rag_folder.NOT_ANSWERING if answer_settings is None else answer_settings.list_settings()
    maker = embedder_named(embedder) if isinstance(embedder, str) else embedder
    settings: dict[str, Any] = {"corpus": rag_folder.hash_items(map(asdict, documents))}
    settings |= {"questions": rag_folder.hash_items(map(asdict, every)), "embedder": maker.name}
    settings |= {"size": size, "overlap": overlap, "limit": limit, **asdict(release_settings)}
    with rag_folder.lock_rag_folder(out, settings | later) as folder:
        with bar("embedding") as progress:
            rows = _embed_texts(maker, [chunk.titled for chunk in chunks], out, progress)
            queries = _embed_texts(maker, [question.text for question in asked], out)
        source = evaluation.Corpus(documents, chunks, rows)
        with bar("retrieving") as progress:
            retrieval, guarantee = _retrieve(folder, source, asked, queries, release_settings, ledger, progress)
        answers = None
        if answer_settings is not None:
            with bar("answer_settings") as progress:
                answers = _answer(out, source, asked, retrieval, answer_settings, progress)
        facts = {"documents": len(documents), "chunks": len(chunks), "questions": len(asked)}
        facts |= {"answerable": len(known), "left_out": len(every) - len(known)}
        done = RagRun(facts, guarantee, retrieval, answers)
        folder.write({"results.json": rag_folder.encode_json(done.to_dict()), "results.csv": done.write_csv()})
    return done


def _check_embedder(embedder: object) -> None:
    """Reject an embedder of images: it would take a page for a file, and its error would show the text."""
    name = embedder if isinstance(embedder, str) else getattr(embedder, "name", None)
    family = name.partition(":")[0] if isinstance(name, str) else None
    if family is None or family in _OF_IMAGES or (isinstance(embedder, str) and family not in _OF_TEXTS):
        must = "one for texts, 'sentence-transformers:<model>' or 'hashing:<dimensions>'"
        _validation.reject("embedder", must, name)


def _embed_texts(
    embedder: Embedder, texts: list[str], out: Path, progress: Progress | None = None
) -> NDArray[np.float32]:
    """Embed texts block by block, so that a run that is stopped loses one block at most."""
    parts = []
    for start in range(0, len(texts), _BLOCK):
        parts.append(embed_cached(embedder, texts[start : start + _BLOCK], out / "embeddings"))
        if progress is not None:
            progress(min(start + _BLOCK, len(texts)), len(texts))
    return np.concatenate(parts)


def _retrieve(
    folder: RunFolder,
    corpus: evaluation.Corpus,
    questions: tuple[evaluation.Question, ...],
    queries: NDArray[np.float32],
    release_settings: ReleaseSettings,
    ledger: AccountLike | None,
    progress: Progress | None,
) -> tuple[evaluation.RetrievalResult, Guarantee]:
    """Read what was retrieved before, or else retrieve now; also return the guarantee of one release."""
    rule = evaluation.RetrievalRule(release_settings.threshold, release_settings.k)
    releases = 1 if release_settings.mechanism == "index" else len(questions)
    facts = {"chunks": rag_folder.hash_items(chunk.titled for chunk in corpus.chunks), **rule._asdict()}
    facts |= {"releases": releases}
    sampler = "exact" if release_settings.research_seed is None else "research"
    promise = (release_settings.epsilon, release_settings.delta, sampler)
    kept = rag_folder.read_retrieval(folder.path, questions, len(corpus.chunks), facts, promise)
    if kept is None:
        release = release_settings.make_factory(corpus.embeddings, release_settings.research_seed, ledger)
        records, made = retrieve_all(
            corpus,
            questions,
            queries,
            release=release,
            setting=rule,
            paper_rule=release_settings.paper_rule,
            progress=progress,
        )
        kept = records, made[0]  # all of them promise the same
        rag_folder.write_retrieval(folder, *kept, facts)
    records, guarantee = kept
    return measure_rankings(corpus, questions, records, setting=rule, made=[guarantee] * releases), guarantee


def _answer(
    out: Path,
    corpus: evaluation.Corpus,
    questions: tuple[evaluation.Question, ...],
    retrieval: evaluation.RetrievalResult,
    answer_settings: AnswerSettings,
    progress: Progress | None,
) -> evaluation.AnswerResult:
    cache = out / "answers"
    with (
        answer_settings.make_model(answer_settings.generator, cache) as generator,
        answer_settings.make_model(answer_settings.judge, cache) as judge,
    ):
        return evaluation.evaluate_answers(
            corpus,
            questions,
            generator=generator,
            judge=judge,
            retrieval=retrieval,
            conditions=answer_settings.conditions,
            workers=answer_settings.workers,
            progress=progress,
        )


def _format_accuracy(found: evaluation.Accuracy) -> str:
    """Format the share of matches, with its bounds where some verdicts could not be read."""
    shown = "-" if found.accuracy is None else f"{found.accuracy:.3f}"
    return shown + (f" ({found.lowest:.3f}..{found.highest:.3f})" if found.unparsed else "")


def _format_gain(found: evaluation.Accuracy) -> str:
    return "-" if found.gain is None else f"{found.gain:+.3f}"
