"""Finished runs, as the results page reads them: rows, pictures, and the command that makes them again."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scoreshield.errors import InvalidInput
from scoreshield.experiments import EXPERIMENTS, table
from scoreshield.experiments.runner import ENVIRONMENT, SETTINGS
from scoreshield.report import experiments as pictures
from scoreshield.report.result_tables import mean
from scoreshield.report.results_page import Picture

Row = dict[str, Any]


@dataclass(frozen=True)
class Run:
    """One run folder: its rows, its pictures by name, and the command that makes it."""

    name: str
    folder: Path
    rows: list[Row]
    pictures: dict[str, Path]
    command: str
    environment: dict[str, Any]

    def where(self, **wanted: Any) -> list[Row]:
        return table.where(self.rows, **wanted)

    def value(self, **wanted: Any) -> float:
        return mean(self.where(**wanted))

    def datasets(self) -> list[str]:
        return list(dict.fromkeys(row["dataset"] for row in self.rows))

    def picture(self, stem: str, alt: str, reading: str) -> list[Picture]:
        """One picture, if the run has it."""
        path = self.pictures.get(stem)
        return [] if path is None else [Picture(path, alt, self.command, reading)]

    def at_equal_attack(self, dataset: str, metric: str) -> str:
        """The best and the Gaussian at the middle advantage of the run."""
        rows = self.where(setting="advantage", dataset=dataset, metric=metric)
        if not rows:
            return ""
        advantages = sorted({row["target_advantage"] for row in rows})
        middle = advantages[len(advantages) // 2]
        here = [row for row in rows if row["target_advantage"] == middle]
        values = {
            method: mean(table.where(here, method=method)) for method in dict.fromkeys(row["method"] for row in here)
        }
        known = {method: value for method, value in values.items() if not math.isnan(value)}
        pick = max if rows[0]["better"] == "higher" else min
        best = pick(known, key=lambda method: known[method])
        told = f"At advantage {middle:g}, {best} is best with {known[best]:.3f}"
        plain = "gaussian" if "gaussian" in known else "noisy"
        return told + (f"; {plain} gives {known[plain]:.3f}." if plain in known and plain != best else ".")

    def nearest(self, epsilon: float) -> float:
        """The budget of the run nearest to a round one."""
        budgets = {row["epsilon"] for row in self.where(setting="contract")}
        return float(min(budgets, key=lambda known: abs(math.log(known / epsilon))))


def read(runs: Path) -> dict[str, Run]:
    """Every finished run under a folder, by the name of its experiment."""
    found = {}
    for name in EXPERIMENTS:
        folder = runs / name
        if not (folder / "results.csv").exists():
            continue
        rows = table.read(folder / "results.csv")
        if not rows:
            raise InvalidInput(f"{folder / 'results.csv'} holds no rows; run the experiment again.")
        made = {path.stem: path for path in pictures.draw(name, rows, folder / "figures")}
        found[name] = Run(name, folder, rows, made, _command(name, folder), _environment(folder))
    if not found:
        raise InvalidInput(
            f"There is no finished run under {runs}; make one with: scoreshield bench noise --quick --out {runs}/noise"
        )
    return found


def _environment(folder: Path) -> dict[str, Any]:
    try:
        return dict(json.loads((folder / ENVIRONMENT).read_text("utf-8")))
    except (OSError, ValueError):
        return {}


def _command(name: str, folder: Path) -> str:
    """The command that makes a run with these settings, as far as they are ones that ship."""
    try:
        settings = json.loads((folder / SETTINGS).read_text("utf-8"))["grid"]
    except (OSError, ValueError, KeyError):
        settings = None
    experiment = EXPERIMENTS[name]
    how = " --grid GRID.yaml"
    for quick in (True, False):
        if settings == json.loads(json.dumps(experiment.grid(quick=quick).to_dict())):
            how = " --quick" if quick else ""
    data = " --data-dir DIR" if experiment.files else ""
    return f"scoreshield bench {name}{how}{data} --out runs/{name}"
