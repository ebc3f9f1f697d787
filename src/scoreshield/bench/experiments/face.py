"""Face verification from private scores: the paper's DP-FR tables, on LFW score sets and on synthetic ones.

A score set becomes a collection whose cosines with one query are those scores, exactly: row (s, sqrt(1 - s^2)), query
(1, 0). So the releases that are measured are the library's own, end to end. Each pair is one record: the enrolled face
is private, the probe is public.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scoreshield.bench.data import compact
from scoreshield.bench.experiments import mechanisms
from scoreshield.bench.experiments.cells import Experiment, ExperimentCell, Measurement, Metric
from scoreshield.bench.experiments.grid import Choices, Grid
from scoreshield.bench.experiments.mechanisms import PublicKnowledge
from scoreshield.decisions.models import FAMILIES, draw_score_set
from scoreshield.errors import InvalidInput

#: The last two take a synthetic set: no real one here has as many impostors.
_RATES = {"tar@1e-2": 1e-2, "tar@1e-3": 1e-3, "tar@1e-4": 1e-4, "tar@1e-5": 1e-5, "tar@1e-6": 1e-6}
_MECHANISMS = ("gaussian", "gaussian, clamped", "laplace", "staircase", "staircase, clamped", "optimal", "levels")
_QUERY = np.array([1.0, 0.0])


class ScoreCollection(NamedTuple):
    """A collection whose scores are known, which of them are genuine, and their folds if there are any."""

    rows: NDArray[np.float64]
    same: NDArray[np.bool_]
    folds: NDArray[np.int64] | None
    public: PublicKnowledge

    @property
    def clean(self) -> NDArray[np.float64]:
        scores: NDArray[np.float64] = self.rows[:, 0]
        return scores


class FaceVerification(Experiment):
    """``scoreshield bench dp-fr``."""

    name = "dp-fr"
    title = "Face verification from private scores"
    metrics: ClassVar[Mapping[str, Metric]] = {
        "accuracy": Metric("verification"),
        "auc": Metric("verification"),
        "eer": Metric("verification", "lower"),
        **{name: Metric("verification") for name in _RATES},
    }
    files = ("lfw_scores.npz",)
    has_custom_laws = True

    def list_choices(self, base: Mapping[str, Any]) -> Choices:
        sets = [f"lfw/{name}" for name in compact.LFW_SCORE_SETS] + [f"synthetic/{name}" for name in FAMILIES]
        public = dict.fromkeys(("default", *compact.LFW_SCORE_SETS, *FAMILIES), base["options"]["public"]["default"])
        return Choices(sets, (*_MECHANISMS, *self.laws), (), tuple(self.metrics), base["options"] | {"public": public})

    def list_cells(self, grid: Grid) -> list[ExperimentCell]:
        return mechanisms.list_mechanism_cells(grid, self.laws)

    def load(self, grid: Grid, data_dir: Path | None) -> dict[str, ScoreCollection]:
        return {dataset: _load_scores(dataset, grid, data_dir) for dataset in grid.datasets}

    def measure(self, cell: ExperimentCell, grid: Grid, data: dict[str, ScoreCollection]) -> Measurement:
        from scoreshield.tasks import evaluate_verification

        scores = data[cell.dataset]
        guarantee = None
        if cell.setting == "clean":
            released: Any = scores.clean
        else:
            released = mechanisms.release_cell(
                cell, scores.rows, _QUERY, scores.public, cell.seed(grid.seed), k=1, laws=self.laws
            )
            guarantee = released.guarantee
            if cell.setting == "paper":  # which decides on clipped scores
                released = released.scores
        found = evaluate_verification(released, scores.same, folds=scores.folds)
        values = {"accuracy": found.accuracy, "auc": found.auc, "eer": found.eer}
        values |= {name: found.tar_at(rate) for name, rate in _RATES.items()}
        return Measurement(values, guarantee, len(scores.same))


def _load_scores(dataset: str, grid: Grid, data_dir: Path | None) -> ScoreCollection:
    kind, name = dataset.split("/")
    known = grid.options["public"]["default"] | grid.options["public"].get(name, {})
    public = PublicKnowledge(tuple(known["range"]), known["accept"], {1.0: (known["accept"],)})
    if kind == "synthetic":
        made = draw_score_set(name, grid.options["scores_per_side"], grid.seed)
        genuine, impostor, folds = made.genuine, made.impostor, None
    else:
        if data_dir is None:
            raise InvalidInput(
                f"{dataset} is one of the compact data sets: say where they are with --data-dir (lfw_scores.npz)."
            )
        pairs = compact.load_compact_lfw_scores(data_dir, name)
        genuine, impostor, folds = pairs.genuine, pairs.impostor, pairs.fold
    scores = np.clip(np.concatenate([genuine, impostor]), -1, 1)
    same = np.arange(len(scores)) < len(genuine)
    return ScoreCollection(np.stack([scores, np.sqrt(1 - scores**2)], axis=1), same, folds, public)
