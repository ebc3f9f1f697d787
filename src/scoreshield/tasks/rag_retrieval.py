"""Retrieval for DP-RAG: the thresholded top-k rule on clean and on private scores, and how far apart they are.

The protocol is the paper's (its appendix on DP-RAG): one index of chunks for all questions, cosine scores, the chunks
with a score of at least t, the k best of them, best first. Private retrieval ranks what a release holds in place of the
clean scores. A chunk is relevant if it comes from a document that the question needs. This takes no generator.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from scoreshield import _checks
from scoreshield import embeddings as _embeddings
from scoreshield.errors import InvalidInput
from scoreshield.geometry.arrays import Progress
from scoreshield.indexing import IndexRelease
from scoreshield.privacy.guarantee import Guarantee
from scoreshield.results import MatchRelease, Release, ScoreRelease, TopKRelease
from scoreshield.tasks.rag_corpus import Corpus, Question, check_questions
from scoreshield.tasks.retrieval import paper_top_k, ranked, search_metrics

SCOPE = (
    "The guarantee covers the released scores and what is computed from them, such as which records are retrieved; it "
    "does not cover the texts of retrieved records, nor answers generated from private texts; and one release covers "
    "one query: m queries cost m releases unless an index was released."
)
AUDIENCE = (
    "The clean and oracle conditions, and every comparison with them, read the collection without noise: this report "
    "is for its curator, or for anyone where the collection is public."
)


class Setting(NamedTuple):
    """The rule's two numbers: the least score, and the most chunks."""

    threshold: float
    k: int


#: The paper's three, its main one first.
SETTINGS = (Setting(0.35, 20), Setting(0.25, 50), Setting(0.25, 10))

#: From a query's embedding to a release over the corpus: scores, matches, top-k, or one and the same index.
ReleaseFor = Callable[[NDArray[np.float64]], Release]


@dataclass(frozen=True)
class Cost:
    """What the private condition released, all questions together.

    Attributes
    ----------
    releases : how many there were; an index that answers every question is one.
    epsilon, delta : their sums, which bound the whole; :func:`scoreshield.compose` may say less.
    sampler : "exact", or "research" where any was made with a seed and is not private.
    """

    releases: int
    epsilon: float
    delta: float
    sampler: str

    def __str__(self) -> str:
        pair = f"epsilon {self.epsilon:g}, delta {self.delta:g}"
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

    Attributes
    ----------
    recall : the share of relevant chunks among the first k.
    ndcg : of the first 10.
    overlap : the share of the clean first k that are kept; None where clean retrieval finds nothing at all.
    documents : the share of needed documents with at least one chunk retrieved.
    empty : the share of questions without any chunk.
    returned : how many chunks.
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
    anything twice.
    """

    setting: Setting
    metrics: Mapping[str, RetrievalMetrics]
    records: tuple[RetrievalRecord, ...]
    cost: Cost | None

    def indices(self, condition: str) -> dict[str, tuple[int, ...]]:
        """The chunks of each question, by its id, in one condition."""
        return {record.question: record.indices for record in self.records if record.condition == condition}

    def to_dict(self) -> dict[str, Any]:
        return {
            "scope": SCOPE,
            "audience": AUDIENCE,
            "setting": self.setting._asdict(),
            "metrics": {name: asdict(metrics) for name, metrics in self.metrics.items()},
            "records": [asdict(record) | {"indices": list(record.indices)} for record in self.records],
            "cost": None if self.cost is None else asdict(self.cost),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """What ``to_dict`` gave, back again."""
        try:
            return cls(
                setting=_setting(tuple(data["setting"][name] for name in Setting._fields), "from_dict"),
                metrics={name: RetrievalMetrics(**values) for name, values in data["metrics"].items()},
                records=tuple(
                    RetrievalRecord(r["question"], r["condition"], tuple(map(int, r["indices"])))
                    for r in data["records"]
                ),
                cost=None if data["cost"] is None else Cost(**data["cost"]),
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
        return "\n".join([title, *table(head, rows), *closing(self.cost)])


def retrieve(
    corpus: Corpus,
    query: ArrayLike,
    condition: str,
    *,
    setting: tuple[float, int] = SETTINGS[0],
    release: ReleaseFor | None = None,
    paper_rule: bool = False,
) -> NDArray[np.intp]:
    """The chunks that one query gets, best first: by clean scores ("clean") or by a release ("private").

    Parameters
    ----------
    setting : (t, k). A match or top-k release was cut when it was made: of those, k alone applies.
    release : for "private", a callable from the query's embedding to a release over ``corpus.embeddings``.
    paper_rule : rank private scores as the paper does, clipped and with ties by smaller index; for its tables alone.
    """
    function = "retrieve"
    condition = _checks.one_of(condition, "condition", function, ("clean", "private"))
    rule = _setting(setting, function)
    queries, single = _embeddings.as_queries(query, corpus.embeddings.shape[1], function)
    if not single:
        _checks.reject("query", function, "one query, a vector", query)
    if condition == "clean":
        return _clean(corpus, queries[0], rule)
    return _private(corpus, queries[0], rule, release, paper_rule, function)[0]


def evaluate_retrieval(
    corpus: Corpus,
    questions: Sequence[Question],
    queries: ArrayLike,
    *,
    release: ReleaseFor | None = None,
    setting: tuple[float, int] = SETTINGS[0],
    paper_rule: bool = False,
    progress: Progress | None = None,
) -> RetrievalResult:
    """Retrieve for every question, cleanly and, with ``release``, privately, and compare.

    Parameters
    ----------
    queries : the questions' embeddings, one row each.
    release, setting, paper_rule : as in :func:`retrieve`. ``release`` is called once a question, in order; what it
        raises ends the evaluation.
    progress : called with (questions done, questions in all).
    """
    function = "evaluate_retrieval"
    check_questions(questions, corpus, function)
    rule = _setting(setting, function)
    rows, _ = _embeddings.as_queries(queries, corpus.embeddings.shape[1], function)
    if np.ndim(queries) != 2 or len(rows) != len(questions):
        _checks.reject("queries", function, f"a matrix with one row for each of {len(questions)} questions", queries)
    found: dict[str, list[NDArray[np.intp]]] = {name: [] for name in ("clean", "private")[: 1 + (release is not None)]}
    made: list[Guarantee] = []  # not the releases, which are large
    for number, row in enumerate(rows, start=1):
        found["clean"].append(_clean(corpus, row, rule))
        if release is not None:
            indices, released = _private(corpus, row, rule, release, paper_rule, function)
            found["private"].append(indices)
            if not any(released.guarantee is other for other in made):
                made.append(released.guarantee)
        if progress is not None:
            progress(number, len(rows))
    return RetrievalResult(
        setting=rule,
        metrics={
            name: _metrics(corpus, questions, rankings, found["clean"], rule.k) for name, rankings in found.items()
        },
        records=tuple(
            RetrievalRecord(question.id, name, tuple(map(int, indices)))
            for name, rankings in found.items()
            for question, indices in zip(questions, rankings, strict=True)
        ),
        cost=_cost(made) if made else None,
    )


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> list[str]:
    """Lines with aligned columns, numbers to three places."""
    cells = [list(head), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def closing(cost: Cost | None) -> list[str]:
    """What every report ends with."""
    return [*([] if cost is None else [str(cost)]), SCOPE, AUDIENCE]


def _cell(value: object) -> str:
    return "-" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)


def _setting(setting: object, function: str) -> Setting:
    if not isinstance(setting, tuple) or len(setting) != 2:
        _checks.reject("setting", function, "a pair (threshold, k)", setting)
    return Setting(_checks.real(setting[0], "threshold", function), _checks.count(setting[1], "k", function))


def _clean(corpus: Corpus, query: NDArray[np.float64], rule: Setting) -> NDArray[np.intp]:
    scores = _embeddings.scores(corpus.embeddings, query[None], "unit", "retrieve")[0]
    return paper_top_k(scores, rule.k, rule.threshold)


def _private(
    corpus: Corpus,
    query: NDArray[np.float64],
    rule: Setting,
    release: ReleaseFor | None,
    paper_rule: bool,
    function: str,
) -> tuple[NDArray[np.intp], Release]:
    if not callable(release):
        _checks.reject("release", function, "a callable from a query's embedding to a release", release)
    released = release(query.copy())
    if _records(released) != len(corpus.chunks):
        must = f"a callable that gives a score, match, top-k or index release of all {len(corpus.chunks)} chunks"
        _checks.reject("release", function, must, released)
    if paper_rule:
        return paper_top_k(released, rule.k, rule.threshold), released
    scored = isinstance(released, ScoreRelease | IndexRelease)
    asked = query if isinstance(released, IndexRelease) else None
    return ranked(released, rule.k, threshold=rule.threshold if scored else None, query=asked), released


def _records(released: object) -> int | None:
    """How many records a release for one query speaks of; None where it is no such release."""
    if isinstance(released, ScoreRelease):
        return len(released.noisy) if released.noisy.ndim == 1 else None
    if isinstance(released, TopKRelease):
        return int(released.guarantee.details["records"])
    return released.guarantee.shape[0] if isinstance(released, MatchRelease | IndexRelease) else None


def _metrics(
    corpus: Corpus,
    questions: Sequence[Question],
    rankings: list[NDArray[np.intp]],
    clean: list[NDArray[np.intp]],
    k: int,
) -> RetrievalMetrics:
    titles = np.array([item.title for item in corpus.chunks])
    relevant = [np.flatnonzero(np.isin(titles, question.documents)) for question in questions]
    at_k = search_metrics(rankings, relevant, k=k, reference=clean)
    shares = [
        len({corpus.chunks[i].title for i in ranking} & set(question.documents)) / len(set(question.documents))
        for question, ranking in zip(questions, rankings, strict=True)
    ]
    return RetrievalMetrics(
        recall=at_k.recall,
        ndcg=search_metrics(rankings, relevant, k=10).ndcg,
        overlap=at_k.overlap,
        documents=float(np.mean(shares)),
        empty=float(np.mean([not len(ranking) for ranking in rankings])),
        returned=at_k.returned,
    )


def _cost(guarantees: list[Guarantee]) -> Cost:
    return Cost(
        releases=len(guarantees),
        epsilon=math.fsum(guarantee.epsilon for guarantee in guarantees),
        delta=min(1.0, math.fsum(guarantee.delta for guarantee in guarantees)),
        sampler="exact" if all(guarantee.sampler == "exact" for guarantee in guarantees) else "research",
    )
