"""DP-RAG end to end: the same questions answered with no, clean, private and ideal context, and judged.

The four conditions are the paper's (its appendix on DP-RAG): "none" gives the generator the question alone, "clean" and
"private" add the chunks that `evaluate_retrieval` found, in their order, and "oracle" the texts of the documents that
the question needs, cut to 10,000 tokens. Prompts, models and decoding are the same in all conditions. A judge gets the
question, the reference and the answer, and says whether the answer matches the reference. A reply that is neither yes
nor no is counted separately.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from scoreshield import _validation
from scoreshield._validation import check_count, validate
from scoreshield.bench.rag import prompts
from scoreshield.bench.rag.chat import ChatModel
from scoreshield.bench.rag.chunks import Tokenizer, cut_tokens
from scoreshield.bench.rag.corpus import Corpus, Question, check_questions
from scoreshield.bench.rag.prompts import Verdict
from scoreshield.bench.rag.retrieval import (
    AUDIENCE,
    SCOPE,
    SETTINGS,
    Cost,
    RetrievalMetrics,
    RetrievalRecord,
    RetrievalResult,
    RetrievalRule,
    align_columns,
    evaluate_retrieval,
    list_closing_lines,
    retrieve,
)
from scoreshield.errors import InvalidInput
from scoreshield.geometry.arrays import Progress

__all__ = [
    "AUDIENCE",
    "CONDITIONS",
    "ORACLE_TOKENS",
    "SCOPE",
    "SETTINGS",
    "Accuracy",
    "AnswerRecord",
    "AnswerResult",
    "Corpus",
    "Cost",
    "Question",
    "RetrievalMetrics",
    "RetrievalRecord",
    "RetrievalResult",
    "RetrievalRule",
    "evaluate_answers",
    "evaluate_retrieval",
    "retrieve",
]

CONDITIONS = ("none", "clean", "private", "oracle")
ORACLE_TOKENS = 10_000  # the paper's


@dataclass(frozen=True)
class AnswerRecord:
    """How one question went in one condition; ``indices`` are the chunks it got, empty without retrieval."""

    question: str
    condition: str
    indices: tuple[int, ...]
    verdict: Verdict


@dataclass(frozen=True)
class Accuracy:
    """How many answers match, in one condition.

    Attributes:
        correct: Answers that match, by the judge.
        wrong: Answers that do not match; a question without an answer is wrong.
        unanswered: How many of the wrong ones have no answer.
        unparsed: Where the judge said neither yes nor no. Counted neither as correct nor as wrong.
        accuracy: Correct / (correct + wrong); None if no verdict could be read.
        lowest: The accuracy if every unparsed one were wrong.
        highest: The accuracy if every unparsed one were correct.
        gain: The accuracy less that without context, over the questions with a verdict in both; None if there are none.
    """

    correct: int
    wrong: int
    unanswered: int
    unparsed: int
    accuracy: float | None
    lowest: float
    highest: float
    gain: float | None


@dataclass(frozen=True)
class AnswerResult:
    """Accuracy in each condition, with a record for every question; neither texts nor scores are in it.

    ``longest`` is that of `RetrievalResult`.
    """

    generator: str
    judge: str
    setting: RetrievalRule | None
    conditions: Mapping[str, Accuracy]
    records: tuple[AnswerRecord, ...]
    cost: Cost | None
    longest: int

    def to_dict(self) -> dict[str, Any]:
        return {
            "scope": SCOPE,
            "audience": AUDIENCE,
            "generator": self.generator,
            "judge": self.judge,
            "setting": None if self.setting is None else self.setting._asdict(),
            "conditions": {name: asdict(accuracy) for name, accuracy in self.conditions.items()},
            "records": [asdict(record) | {"indices": list(record.indices)} for record in self.records],
            "cost": None if self.cost is None else asdict(self.cost),
            "longest": self.longest,
        }

    def __str__(self) -> str:
        head = ("condition", "accuracy", "gain", "correct", "wrong", "unanswered", "unparsed")
        rows = [
            (name, a.accuracy, a.gain, a.correct, a.wrong, a.unanswered, a.unparsed)
            for name, a in self.conditions.items()
        ]
        rule = "" if self.setting is None else f", threshold {self.setting.threshold:g}, k {self.setting.k}"
        title = f"Answers by {self.generator}, judged by {self.judge}{rule}"
        return "\n".join([title, *align_columns(head, rows), *list_closing_lines(self.cost, self.longest)])


@validate(oracle_tokens=check_count, workers=check_count)
def evaluate_answers(
    corpus: Corpus,
    questions: Sequence[Question],
    *,
    generator: ChatModel,
    judge: ChatModel,
    retrieval: RetrievalResult | None = None,
    conditions: Sequence[str] = CONDITIONS,
    oracle_tokens: int = ORACLE_TOKENS,
    tokenizer: Tokenizer = None,
    workers: int = 4,
    progress: Progress | None = None,
) -> AnswerResult:
    """Answer every question in every condition, and judge the answers.

    With a cache folder for both models, a run that was stopped goes on where it was; keep the ``retrieval`` too
    (``to_dict``), since a second private retrieval is a second release and finds other chunks.

    Args:
        generator: The chat model that answers.
        judge: The chat model that judges; it may be the generator.
        retrieval: What `evaluate_retrieval` gave for these questions; needed for "clean" and "private".
        oracle_tokens: How many tokens of the needed documents the oracle gets.
        tokenizer: Counts the tokens, as in `scoreshield.bench.rag.chunks.chunk_documents`.
        workers: How many requests are under way at once.
        progress: Called with (steps done, steps in all): a generation and a judgement for each question and condition.
    """
    check_questions(questions, corpus)
    for name, model in (("generator", generator), ("judge", judge)):
        if not isinstance(model, ChatModel):
            _validation.reject(name, "a ChatModel", type(model).__name__)
    names = _check_conditions(conditions)
    found = {name: _select_chunks(name, retrieval, corpus, questions) for name in names}

    records: list[AnswerRecord] = []
    steps = _Steps(progress, 2 * len(names) * len(questions))
    for name in names:
        asked = [
            prompts.write_answer_messages(
                question.text, _build_context(name, corpus, question, indices, oracle_tokens, tokenizer)
            )
            for question, indices in zip(questions, found[name], strict=True)
        ]
        answers = generator.complete_all(asked, workers=workers, allow_empty=True, progress=steps.report)
        steps.advance(len(questions))
        verdicts = _judge(judge, questions, answers, workers, steps)
        steps.advance(len(questions))
        rows = zip(questions, found[name], verdicts, strict=True)
        records += [AnswerRecord(question.id, name, indices, verdict) for question, indices, verdict in rows]
    used = retrieval if {"clean", "private"} & set(names) else None
    return AnswerResult(
        generator=generator.model,
        judge=judge.model,
        setting=None if used is None else used.setting,
        conditions=_accuracies(records, names),
        records=tuple(records),
        cost=used.cost if used is not None and "private" in names else None,
        longest=max(Counter(chunk.document for chunk in corpus.chunks).values()),
    )


class _Steps:
    """One count of progress over several runs."""

    def __init__(self, progress: Progress | None, total: int) -> None:
        self._progress, self._total, self._before = progress, total, 0

    def report(self, done: int, _: int) -> None:
        if self._progress is not None:
            self._progress(self._before + done, self._total)

    def advance(self, steps: int) -> None:
        self._before += steps
        self.report(0, 0)


def _check_conditions(conditions: object) -> tuple[str, ...]:
    if not isinstance(conditions, Sequence) or isinstance(conditions, str) or not conditions:
        _validation.reject("conditions", "a list of conditions, not empty", conditions)
    names = tuple(_validation.check_option(name, "conditions", CONDITIONS) for name in conditions)
    if len(set(names)) != len(names):
        _validation.reject("conditions", "a list that names no condition twice", conditions)
    return names


def _select_chunks(
    condition: str, retrieval: object, corpus: Corpus, questions: Sequence[Question]
) -> list[tuple[int, ...]]:
    """Return the chunks of each question, in order, in one condition."""
    if condition in ("none", "oracle"):
        return [()] * len(questions)
    if not isinstance(retrieval, RetrievalResult):
        must = f"what evaluate_retrieval gave, for the condition {condition!r}"
        _validation.reject("retrieval", must, type(retrieval).__name__)
    found = retrieval.indices(condition)
    if not found:
        raise InvalidInput(
            f"The 'retrieval' has no condition {condition!r}: make it with a release, or leave that condition out."
        )
    if set(found) != {question.id for question in questions}:
        raise InvalidInput("The 'retrieval' is for other questions than these: retrieve for these first.")
    if any(not 0 <= index < len(corpus.chunks) for indices in found.values() for index in indices):
        raise InvalidInput("The 'retrieval' names chunks that the corpus does not have.")
    return [found[question.id] for question in questions]


def _build_context(
    condition: str,
    corpus: Corpus,
    question: Question,
    indices: tuple[int, ...],
    oracle_tokens: int,
    tokenizer: Tokenizer,
) -> str:
    if condition == "none":
        return ""
    if condition == "oracle":
        return prompts.write_context(_list_needed(corpus, question, oracle_tokens, tokenizer))
    return prompts.write_context([(corpus.chunks[i].title, corpus.chunks[i].text) for i in indices])


def _list_needed(corpus: Corpus, question: Question, limit: int, tokenizer: Tokenizer) -> list[tuple[str, str]]:
    """List the needed documents, in the question's order, up to this number of tokens of text in all."""
    texts = {document.title: document.text for document in corpus.documents}
    given = []
    for title in dict.fromkeys(question.documents):
        text, used = cut_tokens(texts[title], limit, tokenizer)
        limit -= used
        if used:
            given.append((title, text))
    return given


def _judge(
    judge: ChatModel, questions: Sequence[Question], answers: list[str], workers: int, steps: _Steps
) -> list[Verdict]:
    """Judge each answer; an empty one needs no judge."""
    pairs = [(question, answer) for question, answer in zip(questions, answers, strict=True) if answer]
    asked = [prompts.write_judge_messages(question.text, question.answer, answer) for question, answer in pairs]
    replies = iter(judge.complete_all(asked, workers=workers, allow_empty=True, progress=steps.report))
    return [prompts.parse_verdict(next(replies)) if answer else "unanswered" for answer in answers]


def _accuracies(records: list[AnswerRecord], names: tuple[str, ...]) -> dict[str, Accuracy]:
    verdicts = {name: {r.question: r.verdict for r in records if r.condition == name} for name in names}
    return {name: _accuracy(verdicts[name], verdicts.get("none")) for name in names}


def _accuracy(verdicts: dict[str, Verdict], baseline: dict[str, Verdict] | None) -> Accuracy:
    given = list(verdicts.values())
    correct, unparsed = given.count("yes"), given.count("unparsed")
    judged = len(given) - unparsed
    return Accuracy(
        correct=correct,
        wrong=judged - correct,
        unanswered=given.count("unanswered"),
        unparsed=unparsed,
        accuracy=correct / judged if judged else None,
        lowest=correct / len(given),
        highest=(correct + unparsed) / len(given),
        gain=None if baseline is None else _compute_gain(verdicts, baseline),
    )


def _compute_gain(verdicts: dict[str, Verdict], baseline: dict[str, Verdict]) -> float | None:
    both = [
        (verdicts[q] == "yes", baseline[q] == "yes") for q in verdicts if "unparsed" not in (verdicts[q], baseline[q])
    ]
    return sum(now - before for now, before in both) / len(both) if both else None
