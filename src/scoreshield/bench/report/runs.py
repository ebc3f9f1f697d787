"""Finished runs, as the results page reads them: rows, pictures, and the command that makes each again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from scoreshield import _loading
from scoreshield._formatting import typeset_power
from scoreshield._loading import make_printable
from scoreshield.bench.experiments import EXPERIMENTS, table
from scoreshield.bench.experiments.runner import SETTINGS
from scoreshield.bench.report import pictures
from scoreshield.bench.report.frames import select_rows
from scoreshield.bench.report.results_page import Picture
from scoreshield.bench.report.tables import compute_mean, format_spread
from scoreshield.errors import InvalidInput

Row = dict[str, Any]

#: Of each row: where it was measured.
_ENVIRONMENT = ("scoreshield", "python", "numpy", "scipy", "machine", "processor", "cores")
#: How much of what each data set holds a repeat is made of; the option of the grid has the same name.
_WHOLE = {
    "scifact": ("queries", 300), "frames": ("queries", 824), "stsb": ("pairs", 1379), "ml100k": ("users", 943),
    "cifar10": ("images", 3000),
}  # fmt: skip


@dataclass(frozen=True)
class Run:
    """One run folder.

    Attributes:
        name: of the experiment.
        folder: where the run is.
        rows: its table of results.
        pictures: its pictures, by name.
        command: what makes the run again.
        settings: its grid, where it is known.
    """

    name: str
    folder: Path
    rows: pd.DataFrame
    pictures: dict[str, Path]
    command: str
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def delta(self) -> float | None:
        """The one delta of tables and text, the strictest of the run; None where all mechanisms are pure."""
        deltas = pd.to_numeric(self.rows["delta"])
        return min(deltas[deltas > 0].tolist(), default=None)

    @cached_property
    def _strict(self) -> pd.DataFrame:
        # At equal attack the noise does not depend on delta, which only says where its epsilon is read off.
        strict = self.rows["delta"].isna() | self.rows["delta"].isin([0.0, self.delta])
        return self.rows[strict | (self.rows["setting"] == "advantage")]

    @property
    def promise(self) -> str:
        """For captions: at which delta."""
        return "δ = 0" if self.delta is None else f"δ = {typeset_power(self.delta)} or 0"

    def select(self, **conditions: Any) -> pd.DataFrame:
        """Select the rows at the one delta that agree with every condition."""
        return select_rows(self._strict, **conditions)

    def compute_mean(self, **conditions: Any) -> float:
        """Compute the mean of the selected values."""
        return compute_mean(self.select(**conditions))

    def format_spread(self, **conditions: Any) -> str:
        """Write mean ± standard deviation of the selected values, or nothing where there is none."""
        return format_spread(self.select(**conditions))

    def list_datasets(self) -> list[str]:
        """List the data sets in the order of the rows."""
        return [str(name) for name in self.rows["dataset"].unique()]

    def find_picture(self, stem: str, alt: str, reading: str) -> list[Picture]:
        """Find one picture, if the run has it."""
        path = self.pictures.get(stem)
        return [] if path is None else [Picture(path, alt, self.command, reading)]

    def describe_equal_attack(self, dataset: str, metric: str) -> str:
        """Describe the best method and the Gaussian ones at the attack advantage nearest to 0.9."""
        rows = self.select(setting="advantage", dataset=dataset, metric=metric)
        targets = rows["target_advantage"].tolist()
        near = min(targets, key=lambda known: abs(known - 0.9), default=math.nan)
        here = select_rows(rows, target_advantage=near)
        best = find_best_method(here)
        if best is None:
            return ""
        others = [
            (f"{method} gives {{}}", format_spread(select_rows(here, method=method)))
            for method in ("gaussian, clamped", "gaussian", "noisy")
            if method != best
        ]
        return join_sentence(
            f"{dataset} at advantage {near:g}: ",
            [(f"{best} is best with {{}}", format_spread(select_rows(here, method=best))), *others],
        )

    def find_nearest_epsilon(self, epsilon: float) -> float:
        """Find the budget of the run nearest to a round one; NaN where there is none."""
        budgets = self.select(setting=("contract", "paper"))["epsilon"].tolist()
        return float(min(budgets, key=lambda known: abs(math.log(known / epsilon)), default=math.nan))

    def describe_sizes(self) -> str:
        """Describe how much was measured, and what the spread is a spread of."""
        parts, is_sampled = [], False
        for dataset, rows in self.rows.groupby("dataset", sort=False):
            sizes = sorted(rows["n"].unique().tolist())
            n = f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")
            unit, whole = _WHOLE.get(str(dataset).split("/")[0], ("", 0))
            used = sizes[0] if unit == "images" else self.settings.get("options", {}).get(unit, 0)
            is_sampled = is_sampled or 0 < used < whole
            parts.append(f"{dataset}: n = {n}" + (f", {min(used, whole):,} of {whole:,} {unit}" if used else ""))
        repeats = 1 + int(self.rows["repeat"].max())
        if repeats == 1:
            spread = "one repeat, so no spread is known"
        else:
            over = "the sample and the noise" if is_sampled else "the noise alone"
            fresh = "a fresh sample and fresh noise" if is_sampled else "fresh noise on the same records"
            spread = f"{repeats} repeats with {fresh}: ± is one standard deviation over {over}"
        return f"Sizes: {'; '.join(parts)}. {spread[0].upper()}{spread[1:]}."


def find_best_method(frame: pd.DataFrame) -> str | None:
    """Find the method with the best mean; None where nothing was measured."""
    means = frame.groupby("method", sort=False)["value"].mean().dropna()
    if means.empty:
        return None
    return str(means.idxmax() if frame["better"].iloc[0] == "higher" else means.idxmin())


def join_sentence(opening: str, pieces: Iterable[tuple[str, str]]) -> str:
    """Join the pieces whose value is known to one sentence; an empty text where none is."""
    known = [form.format(value) for form, value in pieces if value]
    return f"{opening}{', '.join(known)}." if known else ""


def summarise_environment(runs: dict[str, Run]) -> dict[str, str]:
    """Describe where the rows say that they were measured; where that differs, which runs were where."""
    facts = {}
    for name in _ENVIRONMENT:
        places: dict[str, list[str]] = {}
        for run in runs.values():
            for value in run.rows[name].dropna().unique().tolist() if name in run.rows else ():
                places.setdefault(str(value), []).append(run.name)
        if places:
            texts = [value + (f" ({', '.join(where)})" if len(places) > 1 else "") for value, where in places.items()]
            facts[name] = "; ".join(texts)
    return facts


def read_runs(folder: Path) -> dict[str, Run]:
    """Read every finished run under a folder, by the name of its experiment."""
    runs = {}
    for name in EXPERIMENTS:
        path = folder / name / "results.csv"
        if not path.exists():
            continue
        rows = pd.DataFrame([_remove_marks(row) for row in table.read_results(path)])
        if rows.empty:
            raise InvalidInput(f"{path} holds no rows; run the experiment again.")
        drawn = {picture.stem: picture for picture in pictures.draw_pictures(name, rows, folder / name / "figures")}
        settings = _read_settings(folder / name)
        runs[name] = Run(name, folder / name, rows, drawn, _write_command(name, settings), settings)
    if not runs:
        raise InvalidInput(
            f"There is no finished run under {folder}; make one with: "
            f"scoreshield bench noise --quick --out {folder}/noise"
        )
    return runs


#: Columns of JSON, which no page shows.
_JSON = ("facts", "guarantee")
#: What Markdown, HTML or a chart would read as a mark of its own.
_MARKS = re.compile(r"[\[\]<>`*\\|&!$^~{}]|(?<=http):(?=/)|(?<=https):(?=/)|(?<=www)\.", re.IGNORECASE)


def _remove_marks(row: Row) -> Row:
    """Make the names of a row plain text: a table from elsewhere could hold a link or a script in a name."""
    return {
        name: make_printable(_MARKS.sub("?", text)) if isinstance(text, str) and name not in _JSON else text
        for name, text in row.items()
    }


def _read_settings(folder: Path) -> dict[str, Any]:
    """Read the grid of a run; empty where the folder no longer has it."""
    try:
        return dict(_loading.parse_json(_loading.read_bytes(folder / SETTINGS))["grid"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _write_command(name: str, settings: dict[str, Any]) -> str:
    """Write the command that makes a run with these settings, if they are ones that ship."""
    experiment = EXPERIMENTS[name]
    how = " --grid GRID.yaml"
    for quick in (True, False):
        if settings == json.loads(json.dumps(experiment.make_grid(quick=quick).to_dict())):
            how = " --quick" if quick else ""
    data = " --data-dir DIR" if experiment.files else ""
    return f"scoreshield bench {name}{how}{data} --out runs/{name}"
