"""Retrieval for DP-RAG: the thresholded top-k rule on clean and on private scores, and how far apart they are.

The protocol is the paper's (its appendix on DP-RAG): one index of chunks for all questions, cosine scores, the chunks
with a score of at least t, the k best of them, best first. Private retrieval ranks what a release holds in place of the
clean scores. A chunk is relevant if it comes from a document that the question needs. This takes no generator.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from decimal import ROUND_CEILING, Context, Decimal
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _validation
from scoreshield._validation import one_of, validate
from scoreshield.bench.rag.corpus import Corpus, Question, check_questions
from scoreshield.errors import InvalidInput
from scoreshield.geometry import embeddings as _embeddings
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy.guarantee import SAMPLERS, Guarantee
from scoreshield.releases.index import IndexRelease
from scoreshield.releases.results import MatchRelease, Release, ScoreRelease, TopKRelease
from scoreshield.tasks.retrieval import paper_top_k, rank_records, search_metrics

SCOPE = (
    "The guarantee covers the released scores and what is computed from them, such as which records are retrieved. It "
    "does not cover the texts of retrieved records, or answers generated from private texts. One release covers one "
    "query: m queries cost m releases unless an index was released. One record is one chunk: a page of m chunks "
    "costs up to m times the epsilon."
)
AUDIENCE = (
    "The clean and oracle conditions, and every comparison with them, read the collection without noise: this report "
    "is for its curator, or for anyone where the collection is public."
)


class RetrievalRule(NamedTuple):
    """The rule's two numbers: the least score, and the most chunks."""

    threshold: float
    k: int


#: The paper's three, its main one first.
SETTINGS = (RetrievalRule(0.35, 20), RetrievalRule(0.25, 50), RetrievalRule(0.25, 10))

#: The conditions that retrieve.
RETRIEVING = ("clean", "private")

#: From a query's embedding to a release over the corpus: scores, matches, top-k, or one index.
ReleaseFactory = Callable[[NDArray[np.float64]], Release]


@dataclass(frozen=True)
class Cost:
    """The releases of the private condition, all questions together.

    Attributes:
        releases: How many there were: one per question, or one per index, for any number of questions.
        epsilon: The sum of their epsilons, which bounds the whole; `scoreshield.compose` may say less.
        delta: The sum of their deltas, which bounds the whole; `scoreshield.compose` may say less.
        sampler: "exact", or "research" where any was made with a seed and is not private.
    """

    releases: int
    epsilon: float
    delta: float
    sampler: str

    def __str__(self) -> str:
        pair = f"epsilon {_round_up(self.epsilon)}, delta {_round_up(self.delta)}"
        kind = "" if self.sampler == "exact" else f", {self.sampler} sampler: not private"
        return f"Private: {self.releases} release{'s' * (self.releases != 1)}, adding up to at most {pair}{kind}."


@dataclass(frozen=True)
class RetrievalRecord:
    """Which chunks one question got in one condition, best first."""

    question: str
    condition: str
    indices: tuple[int, ...]


@dataclass(frozen=True)
class RetrievalMetrics:
    """Means over questions.

    Attributes:
        recall: The share of relevant chunks among the first k.
        ndcg: Of the first 10.
        overlap: The share of the clean first k that are kept; None where clean retrieval finds nothing at all.
        documents: The share of needed documents with at least one chunk retrieved.
        empty: The share of questions without any chunk.
        returned: How many chunks.
    """

    recall: float
    ndcg: float
    overlap: float | None
    documents: float
    empty: float
    returned: float


@dataclass(frozen=True)
class RetrievalResult:
    """What retrieval gave in each condition. It holds no scores.

    ``to_dict`` and ``from_dict`` keep it (as JSON, say): answers can then be made later, or again, without releasing
    anything twice. ``longest`` is the number of chunks of the document that has the most.
    """

    setting: RetrievalRule
    metrics: Mapping[str, RetrievalMetrics]
    records: tuple[RetrievalRecord, ...]
    cost: Cost | None
    longest: int

    def indices(self, condition: str) -> dict[str, tuple[int, ...]]:
        """Return the chunks of each question, by its id, in one condition."""
        return {record.question: record.indices for record in self.records if record.condition == condition}

    def to_dict(self) -> dict[str, Any]:
        return {
            "scope": SCOPE,
            "audience": AUDIENCE,
            "setting": self.setting._asdict(),
            "metrics": {name: asdict(metrics) for name, metrics in self.metrics.items()},
            "records": [asdict(record) | {"indices": list(record.indices)} for record in self.records],
            "cost": None if self.cost is None else asdict(self.cost),
            "longest": self.longest,
        }

    @classmethod
    @validate()
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """Make the result that ``to_dict`` gave."""
        try:
            return cls(
                setting=_check_setting(tuple(data["setting"][name] for name in RetrievalRule._fields)),
                metrics={name: _check_metrics(values) for name, values in data["metrics"].items()},
                records=parse_records(data["records"]),
                cost=None if data["cost"] is None else _check_cost(data["cost"]),
                longest=_validation.check_count(data["longest"], "longest"),
            )
        except (KeyError, TypeError, ValueError, AttributeError):
            must = "what RetrievalResult.to_dict gave"
            raise InvalidInput(
                f"The 'data' parameter of from_dict must be {must}. Got something else instead."
            ) from None

    def __str__(self) -> str:
        t, k = self.setting
        head = ("condition", f"recall@{k}", "nDCG@10", "overlap", "documents", "empty", "returned")
        rows = [
            (name, m.recall, m.ndcg, m.overlap, m.documents, m.empty, m.returned) for name, m in self.metrics.items()
        ]
        title = f"Retrieval: the {k} best chunks with a score of at least {t:g}"
        return "\n".join([title, *align_columns(head, rows), *list_closing_lines(self.cost, self.longest)])


@validate(condition=one_of(RETRIEVING))
def retrieve(
    corpus: Corpus,
    query: ArrayLike,
    condition: str,
    *,
    setting: tuple[float, int] = SETTINGS[0],
    release: ReleaseFactory | None = None,
    paper_rule: bool = False,
) -> NDArray[np.intp]:
    """Retrieve the chunks that one query gets, best first: by clean scores ("clean") or by a release ("private").

    Args:
        setting: (t, k). A match or top-k release was cut when it was made: of those, k alone applies.
        release: For "private", a callable from the query's embedding to a release over ``corpus.embeddings``.
        paper_rule: Rank private scores as the paper does, clipped and with ties by smaller index; for its tables alone.
    """
    rule = _check_setting(setting)
    queries, single = _embeddings.as_queries(query, corpus.embeddings.shape[1])
    if not single:
        _validation.reject("query", "one query, a vector", query)
    if condition == "clean":
        return _clean(corpus, queries[0], rule)
    return _retrieve_private(corpus, queries[0], rule, release, paper_rule)[0]


@validate()
def evaluate_retrieval(
    corpus: Corpus,
    questions: Sequence[Question],
    queries: ArrayLike,
    *,
    release: ReleaseFactory | None = None,
    setting: tuple[float, int] = SETTINGS[0],
    paper_rule: bool = False,
    progress: Progress | None = None,
) -> RetrievalResult:
    """Retrieve for every question, cleanly and, with ``release``, privately, and compare.

    Args:
        queries: The questions' embeddings, one row each.
        release: As in `retrieve`. It is called once per question, in order; what it raises ends the evaluation.
        setting: As in `retrieve`.
        paper_rule: As in `retrieve`.
        progress: Called with (questions done, questions in all).
    """
    rule = _check_setting(setting)
    records, made = retrieve_all(
        corpus, questions, queries, release=release, setting=rule, paper_rule=paper_rule, progress=progress
    )
    return measure_rankings(corpus, questions, records, setting=rule, made=made)


def retrieve_all(
    corpus: Corpus,
    questions: Sequence[Question],
    queries: ArrayLike,
    *,
    release: ReleaseFactory | None,
    setting: RetrievalRule,
    paper_rule: bool,
    progress: Progress | None,
) -> tuple[tuple[RetrievalRecord, ...], list[Guarantee]]:
    """Do the first half of `evaluate_retrieval`: what each question gets, and the guarantee of each release."""
    check_questions(questions, corpus)
    rows, _ = _embeddings.as_queries(queries, corpus.embeddings.shape[1])
    if np.ndim(queries) != 2 or len(rows) != len(questions):
        _validation.reject("queries", f"a matrix with one row for each of {len(questions)} questions", queries)
    found: dict[str, list[NDArray[np.intp]]] = {name: [] for name in RETRIEVING[: 1 + (release is not None)]}
    made: list[Guarantee] = []  # not the releases, which are large
    indexes: list[IndexRelease] = []
    for number, row in enumerate(rows, start=1):
        found["clean"].append(_clean(corpus, row, setting))
        if release is not None:
            indices, released = _retrieve_private(corpus, row, setting, release, paper_rule)
            found["private"].append(indices)
            if not any(released is index for index in indexes):
                made.append(released.guarantee)
                indexes += [released] if isinstance(released, IndexRelease) else []
        if progress is not None:
            progress(number, len(rows))
    records = tuple(
        RetrievalRecord(question.id, name, tuple(map(int, indices)))
        for name, rankings in found.items()
        for question, indices in zip(questions, rankings, strict=True)
    )
    return records, made


def measure_rankings(
    corpus: Corpus,
    questions: Sequence[Question],
    records: tuple[RetrievalRecord, ...],
    *,
    setting: RetrievalRule,
    made: Sequence[Guarantee],
) -> RetrievalResult:
    """Do the second half of `evaluate_retrieval`, which releases nothing: compute metrics of the records."""
    found: dict[str, list[tuple[int, ...]]] = {}
    for record in records:  # in the order of the questions
        found.setdefault(record.condition, []).append(record.indices)
    return RetrievalResult(
        setting=setting,
        metrics={
            name: _metrics(corpus, questions, rankings, found["clean"], setting.k) for name, rankings in found.items()
        },
        records=records,
        cost=_sum_cost(made) if made else None,
        longest=max(Counter(chunk.document for chunk in corpus.chunks).values()),
    )


def parse_records(data: Sequence[Mapping[str, Any]]) -> tuple[RetrievalRecord, ...]:
    """Check and return the records that a `RetrievalResult` wrote."""
    records = []
    for item in data:
        if not isinstance(item["question"], str) or not isinstance(item["indices"], list):
            _validation.reject("records", "a list of ids, conditions and chunk numbers", item)
        condition = _validation.check_option(item["condition"], "condition", RETRIEVING)
        indices = tuple(_validation.check_count(index, "indices", least=0) for index in item["indices"])
        records.append(RetrievalRecord(item["question"], condition, indices))
    return tuple(records)


def align_columns(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Write lines with aligned columns, numbers to three places."""
    cells = [list(head), *([_format_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def list_closing_lines(cost: Cost | None, longest: int) -> list[str]:
    """List the lines that every report ends with."""
    chunks = f"{longest:,} chunk{'s' * (longest != 1)}"
    unit = f"The longest page here is {chunks}: a guarantee for whole pages has up to {longest:,} times the epsilon."
    return [*([] if cost is None else [str(cost), unit]), SCOPE, AUDIENCE]


def _format_cell(value: object) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _check_setting(setting: object) -> RetrievalRule:
    if not isinstance(setting, tuple) or len(setting) != 2:
        _validation.reject("setting", "a pair (threshold, k)", setting)
    return RetrievalRule(_validation.check_real(setting[0], "threshold"), _validation.check_count(setting[1], "k"))


def _clean(corpus: Corpus, query: NDArray[np.float64], rule: RetrievalRule) -> NDArray[np.intp]:
    scores = _embeddings.compute_scores(corpus.embeddings, query[None], "unit")[0]
    return paper_top_k(scores, rule.k, rule.threshold)


def _retrieve_private(
    corpus: Corpus,
    query: NDArray[np.float64],
    rule: RetrievalRule,
    release: ReleaseFactory | None,
    paper_rule: bool,
) -> tuple[NDArray[np.intp], Release]:
    if not callable(release):
        _validation.reject("release", "a callable from a query's embedding to a release", release)
    released = release(query.copy())
    if _count_records(released) != len(corpus.chunks):
        must = f"a callable that gives a score, match, top-k or index release of all {len(corpus.chunks)} chunks"
        _validation.reject("release", must, released)
    if paper_rule:
        return paper_top_k(released, rule.k, rule.threshold), released
    scored = isinstance(released, ScoreRelease | IndexRelease)
    asked = query if isinstance(released, IndexRelease) else None
    return rank_records(released, rule.k, threshold=rule.threshold if scored else None, query=asked), released


def _count_records(released: object) -> int | None:
    """Count the records that a release for one query covers; None where it is no such release."""
    if isinstance(released, ScoreRelease):
        return len(released.noisy) if released.noisy.ndim == 1 else None
    if isinstance(released, TopKRelease):
        return int(released.guarantee.details["records"])
    return released.guarantee.shape[0] if isinstance(released, MatchRelease | IndexRelease) else None


def _metrics(
    corpus: Corpus,
    questions: Sequence[Question],
    rankings: Sequence[tuple[int, ...]],
    clean: Sequence[tuple[int, ...]],
    k: int,
) -> RetrievalMetrics:
    places = {document.title: place for place, document in enumerate(corpus.documents)}
    needed = [{places[title] for title in question.documents} for question in questions]
    document_of = np.array([item.document for item in corpus.chunks])
    relevant = [np.flatnonzero(np.isin(document_of, list(wanted))) for wanted in needed]
    at_k = search_metrics(rankings, relevant, k=k, reference=clean)
    shares = [
        len({corpus.chunks[i].document for i in ranking} & wanted) / len(wanted)
        for wanted, ranking in zip(needed, rankings, strict=True)
    ]
    return RetrievalMetrics(
        recall=at_k.recall,
        ndcg=search_metrics(rankings, relevant, k=10).ndcg,
        overlap=at_k.overlap,
        documents=float(np.mean(shares)),
        empty=float(np.mean([not len(ranking) for ranking in rankings])),
        returned=at_k.returned,
    )


def _sum_cost(guarantees: Sequence[Guarantee]) -> Cost:
    return Cost(
        releases=len(guarantees),
        epsilon=math.fsum(guarantee.epsilon for guarantee in guarantees),
        delta=min(1.0, math.fsum(guarantee.delta for guarantee in guarantees)),
        sampler="exact" if all(guarantee.sampler == "exact" for guarantee in guarantees) else "research",
    )


def _check_cost(data: Mapping[str, Any]) -> Cost:
    epsilon, delta = (_validation.check_real(data[name], name) for name in ("epsilon", "delta"))
    if epsilon < 0 or not 0 <= delta <= 1:
        _validation.reject("cost", "an epsilon of at least 0 and a delta in [0, 1]", (epsilon, delta))
    sampler = _validation.check_option(data["sampler"], "sampler", SAMPLERS)
    return Cost(_validation.check_count(data["releases"], "releases"), epsilon, delta, sampler)


def _check_metrics(data: Mapping[str, Any]) -> RetrievalMetrics:
    for name, value in data.items():
        if name != "overlap" or value is not None:
            _validation.check_real(value, name)
    return RetrievalMetrics(**data)


def _round_up(value: float) -> str:
    """Format six digits that are never less than the value, since a cost must not be rounded down."""
    return f"{float(Context(prec=6, rounding=ROUND_CEILING).create_decimal(Decimal(repr(value)))):g}"
