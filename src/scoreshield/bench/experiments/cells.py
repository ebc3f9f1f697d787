"""One setting of an experiment, its measurement, and tidy rows with the true privacy of each value."""

from __future__ import annotations

import copy
import hashlib
import json
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from importlib.resources import files
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Self

from scoreshield.bench.experiments import grid as grids
from scoreshield.bench.experiments.custom_laws import LawMaker, check_laws
from scoreshield.bench.experiments.grid import Choices, Grid
from scoreshield.errors import InvalidInput
from scoreshield.privacy.guarantee import Guarantee

#: The non-private reference; the paper as published; our contract at (epsilon, delta); ours at equal attack.
SETTINGS = ("clean", "paper", "contract", "advantage")

#: Every row of a results table, in this order; the environment's columns follow.
COLUMNS = (
    "experiment",
    "dataset",
    "task",
    "metric",
    "better",
    "value",
    "setting",
    "mechanism",
    "projection",
    "method",
    "radius",
    "epsilon",
    "delta",
    "target_advantage",
    "true_epsilon",
    "true_delta",
    "attack_auc",
    "attack_advantage",
    "noise_std",
    "n",
    "repeat",
    "seed",
    "seconds",
    "facts",
    "guarantee",
)


@dataclass(frozen=True)
class ExperimentCell:
    """One setting, once. ``epsilon`` and ``delta`` are what is claimed; ``radius`` None protects a whole record."""

    dataset: str
    setting: str
    mechanism: str = "none"
    projection: str = "none"
    radius: float | None = None
    epsilon: float | None = None
    delta: float | None = None
    advantage: float | None = None
    repeat: int = 0

    @property
    def key(self) -> str:
        """The same for the same setting, in every run."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:24]

    def seed(self, start: int) -> int:
        """Return the seed of the noise: the same for every projection, so that all see the same noisy object."""
        facts = asdict(self) | {"projection": None}
        text = json.dumps([start, facts], sort_keys=True)
        return int.from_bytes(hashlib.sha256(text.encode()).digest()[:6], "big")

    def sample_seed(self, start: int) -> tuple[int, int]:
        """Return the seed of a subsample: the same for every setting of one repeat."""
        return start, self.repeat


@dataclass(frozen=True)
class Measurement:
    """The measurement of one cell: values by metric, and their guarantee (None where nothing is private).

    ``seeded`` is False where the noise came from the cryptographic generator, so that no seed can repeat it.
    """

    values: Mapping[str, float]
    guarantee: Guarantee | None
    records: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    seeded: bool = True


@dataclass(frozen=True)
class Metric:
    """What a value means: of which task, and whether more of it is better."""

    task: str
    better: str = "higher"


class Experiment(ABC):
    """An experiment, as the runner needs it."""

    name: ClassVar[str]
    title: ClassVar[str]
    metrics: ClassVar[Mapping[str, Metric]]
    files: ClassVar[tuple[str, ...]] = ()  #: of the data folder
    scope: ClassVar[str] = ""  #: what the guarantee covers and what not, said with every result
    serial: ClassVar[bool] = False  #: whether cells must not run side by side, because they are timed
    has_custom_laws: ClassVar[bool] = False  #: whether the caller's noise laws can be compared
    laws: Mapping[str, LawMaker] = MappingProxyType({})  #: the caller's noise laws, by name

    def add_laws(self, laws: Mapping[str, LawMaker]) -> Self:
        """Return the experiment with noise laws of the caller, which a grid names as mechanisms.

        Args:
            laws: For each name a function from (epsilon, delta) to a `CustomNoise` for scores in [-1, 1]. It must be
                defined in a module, since a run calls it in other processes.
        """
        if not self.has_custom_laws:
            raise InvalidInput(f"{self.name} releases no scores of one query, so it takes no custom noise law.")
        known = tuple(self.list_choices(self.read_base_grid()).mechanism)
        changed = copy.copy(self)
        changed.laws = {**self.laws, **check_laws(laws, known)}
        return changed

    def read_base_grid(self) -> dict[str, Any]:
        """Read the grid that ships with the experiment."""
        text = files("scoreshield.bench.experiments").joinpath("grids", f"{self.name}.yaml").read_text("utf-8")
        return grids.parse_yaml(text, f"{self.name}.yaml")

    def make_grid(self, changes: Mapping[str, Any] | None = None, *, quick: bool = False, source: str = "") -> Grid:
        base = self.read_base_grid()
        return grids.make_grid(
            base, changes or {}, quick=quick, choices=self.list_choices(base), source=source or self.name
        )

    @abstractmethod
    def list_choices(self, base: Mapping[str, Any]) -> Choices:
        """List the names that a grid may use."""

    @abstractmethod
    def list_cells(self, grid: Grid) -> list[ExperimentCell]:
        """List every setting of the grid."""

    @abstractmethod
    def load(self, grid: Grid, data_dir: Path | None) -> Any:
        """Load what all cells share; once in each process."""

    @abstractmethod
    def measure(self, cell: ExperimentCell, grid: Grid, data: Any) -> Measurement:
        """Run one cell."""

    def name_method(self, cell: ExperimentCell) -> str:
        """Name the cell's curve in a picture."""
        if cell.setting == "clean":
            return "non-private"
        name = cell.mechanism if cell.projection == "none" else cell.projection
        return f"{name} (paper)" if cell.setting == "paper" else name


def make_rows(
    experiment: Experiment,
    grid: Grid,
    cell: ExperimentCell,
    outcome: Measurement,
    seconds: float,
    environment: Mapping[str, Any],
) -> list[dict[str, Any]]:
    """Make one row per metric."""
    common: dict[str, Any] = {
        "experiment": experiment.name,
        "dataset": cell.dataset,
        "setting": cell.setting,
        "mechanism": cell.mechanism,
        "projection": cell.projection,
        "method": experiment.name_method(cell),
        "radius": cell.radius,
        "epsilon": cell.epsilon,
        "delta": cell.delta,
        "target_advantage": cell.advantage,
        **_describe_privacy(cell, outcome.guarantee),
        "n": outcome.records,
        "repeat": cell.repeat,
        "seed": cell.seed(grid.seed) if outcome.seeded else None,
        "seconds": round(seconds, 6),
        "facts": json.dumps(dict(outcome.facts), sort_keys=True) if outcome.facts else None,
        "guarantee": None if outcome.guarantee is None else json.dumps(outcome.guarantee.to_dict(), sort_keys=True),
    }
    names = grid.metrics or tuple(experiment.metrics)
    return [
        {
            **common,
            "metric": name,
            "task": experiment.metrics[name].task,
            "better": experiment.metrics[name].better,
            "value": None if math.isnan(value) else float(value),
            **environment,
        }
        for name, value in outcome.values.items()
        if name in names
    ]


def _describe_privacy(cell: ExperimentCell, guarantee: Guarantee | None) -> dict[str, Any]:
    """Describe what the same output promises when one whole record is replaced, in any calibration."""
    if guarantee is None:
        return dict.fromkeys(("true_epsilon", "true_delta", "attack_auc", "attack_advantage", "noise_std"))
    profile = guarantee.record_profile()
    delta = cell.delta if cell.delta is not None else guarantee.delta
    epsilon = cell.epsilon if cell.epsilon is not None else guarantee.epsilon
    return {
        "epsilon": epsilon,
        "delta": guarantee.delta if guarantee.calibration == "pure" else delta,
        "true_epsilon": profile.epsilon_at(0.0 if guarantee.calibration == "pure" else delta),
        "true_delta": profile.delta_at(epsilon),
        "attack_auc": profile.auc,
        "attack_advantage": profile.advantage,
        "noise_std": None if guarantee.noise is None else guarantee.noise.std,
    }
