"""Retrieval for generation: which records a private answer names, on SciFact and FRAMES, without any generator.

Each query is one release (an index is one release for all queries). The paper retrieves from clipped scores, with its
own threshold and k, and breaks ties by the smaller index. Our mechanisms rank noisy scores. Public knowledge for one
set comes from the other set: cuts between levels on SciFact are chosen on FRAMES, and the other way round.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

import scoreshield as ss
from scoreshield.bench.data import compact
from scoreshield.bench.data.sets import RetrievalSet
from scoreshield.bench.experiments import mechanisms
from scoreshield.bench.experiments.cells import Experiment, ExperimentCell, Measurement, Metric
from scoreshield.bench.experiments.custom_laws import LawMaker
from scoreshield.bench.experiments.grid import Choices, Grid
from scoreshield.bench.experiments.mechanisms import PublicKnowledge
from scoreshield.bench.rag.retrieval import SCOPE
from scoreshield.errors import InvalidInput

_READERS = {"scifact": compact.load_compact_scifact, "frames": compact.load_compact_frames}
_OTHER = {"scifact": "frames", "frames": "scifact"}
#: The paper's thresholds and depths.
SETTINGS = ((0.35, 20), (0.25, 50), (0.25, 10))
_CUT_BUDGETS = (3.0, 5.0, 8.0, 10.0, 15.0, 20.0)
_CUT_LEVELS = 6
#: Naming fewer records than this, a private selection spends its budget on ten places.
_SELECTED = 10


class RetrievalData(NamedTuple):
    data: RetrievalSet
    documents: NDArray[np.float32]
    queries: NDArray[np.float32]
    best: NDArray[np.intp]  #: the clean first fifty of every query
    public: PublicKnowledge


class RetrievalForGeneration(Experiment):
    """``scoreshield bench dp-rag``."""

    name = "dp-rag"
    title = "Retrieval for generation from private scores"
    scope = SCOPE
    metrics: ClassVar[Mapping[str, Metric]] = {
        "recall@10": Metric("retrieval"),
        "ndcg@10": Metric("retrieval"),
        "overlap@10": Metric("retrieval"),
        "recall@50": Metric("retrieval"),
        **{f"recall@{k}, t={t:g}": Metric("thresholded retrieval") for t, k in SETTINGS},
    }
    files = ("scifact_minilm.npz", "frames_minilm.npz")
    has_custom_laws = True

    def list_choices(self, base: Mapping[str, Any]) -> Choices:
        names = (*mechanisms.MECHANISMS, *self.laws)
        return Choices(tuple(_READERS), names, (), tuple(self.metrics), base["options"])

    def list_cells(self, grid: Grid) -> list[ExperimentCell]:
        return mechanisms.list_mechanism_cells(grid, self.laws)

    def load(self, grid: Grid, data_dir: Path | None) -> dict[str, RetrievalData]:
        if data_dir is None:
            raise InvalidInput(
                "dp-rag reads scifact_minilm.npz and frames_minilm.npz: say where they are with --data-dir."
            )
        return {name: _load(name, grid, data_dir) for name in grid.datasets}

    def measure(self, cell: ExperimentCell, grid: Grid, data: dict[str, RetrievalData]) -> Measurement:
        here = data[cell.dataset]
        chosen = _sample(len(here.queries), grid.options["queries"], cell, grid)
        released, guarantee = _release_rankings(cell, grid, here, chosen, self.laws)
        return Measurement(_metrics(cell, here, chosen, released), guarantee, len(here.documents))


def _release_rankings(
    cell: ExperimentCell,
    grid: Grid,
    here: RetrievalData,
    chosen: NDArray[np.intp],
    laws: Mapping[str, LawMaker],
) -> tuple[list[Any], Any]:
    """Release one answer per query, with the guarantee of each, or of the index for all."""
    seed = cell.seed(grid.seed)
    if cell.setting == "clean":
        return list(here.queries[chosen] @ here.documents.T), None
    if cell.mechanism == "index":
        index = mechanisms.release_cell_index(cell, here.documents, seed)
        return list(index.scores(here.queries[chosen])), index.guarantee
    answers = [
        mechanisms.release_cell(
            cell,
            here.documents,
            here.queries[q],
            here.public,
            np.random.default_rng([seed, int(q)]),
            k=_SELECTED,
            laws=laws,
        )
        for q in chosen
    ]
    return answers, answers[0].guarantee


def _metrics(
    cell: ExperimentCell, here: RetrievalData, chosen: NDArray[np.intp], released: list[Any]
) -> dict[str, float]:
    from scoreshield.tasks import paper_top_k, rank_records, search_metrics

    def first(k: int, threshold: float | None = None) -> list[NDArray[np.intp]]:
        if cell.setting == "paper":
            return [paper_top_k(answer, k, threshold) for answer in released]
        return [rank_records(answer, k, threshold=threshold) for answer in released]

    relevant = [here.data.relevant[q] for q in chosen]
    ten = search_metrics(first(10), relevant, k=10, reference=list(here.best[chosen]))
    values = {"recall@10": ten.recall, "ndcg@10": ten.ndcg, "overlap@10": float(ten.overlap or 0.0)}
    if cell.mechanism != "selection":
        values["recall@50"] = search_metrics(first(50), relevant, k=50).recall
    if cell.mechanism not in ("selection", "screening", "screen and refine"):  # cut when they were made
        for t, k in SETTINGS:
            values[f"recall@{k}, t={t:g}"] = search_metrics(first(k, t), relevant, k=k).recall
    return values


def _sample(queries: int, wanted: int, cell: ExperimentCell, grid: Grid) -> NDArray[np.intp]:
    """Choose the queries of a repeat: all, or a random part, the same for every setting."""
    if wanted >= queries:
        return np.arange(queries)
    return np.sort(np.random.default_rng(cell.sample_seed(grid.seed)).choice(queries, wanted, replace=False))


def _load(name: str, grid: Grid, data_dir: Path) -> RetrievalData:
    data = _READERS[name](data_dir)
    documents, queries = data.document_embeddings, data.query_embeddings
    assert documents is not None
    assert queries is not None
    public = grid.options["public"]
    cuts = _choose_cuts(_READERS[_OTHER[name]](data_dir), len(documents)) if "levels" in grid.mechanism else {}
    best = np.argsort(-(queries @ documents.T), axis=1, kind="stable")[:, :50]
    return RetrievalData(
        data, documents, queries, best, PublicKnowledge(tuple(public["range"]), public["threshold"], cuts)
    )


def _choose_cuts(other: RetrievalSet, records: int) -> dict[float, tuple[float, ...]]:
    """Find cuts between levels from the other, public set: where its relevant and irrelevant scores lie."""
    assert other.document_embeddings is not None
    assert other.query_embeddings is not None
    scores = np.clip(other.query_embeddings @ other.document_embeddings.T, -1, 1)
    relevant = scores[other.pairs[:, 0], other.pairs[:, 1]]
    scores[other.pairs[:, 0], other.pairs[:, 1]] = np.nan
    irrelevant = scores[~np.isnan(scores)]
    return {
        epsilon: ss.retrieval_cuts(epsilon, records, 10, irrelevant, relevant, _CUT_LEVELS).cuts
        for epsilon in _CUT_BUDGETS
    }
