"""Finished runs, as the results page reads them: rows, pictures, and the command that makes them again."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from scoreshield import _loading
from scoreshield._formatting import typeset_power
from scoreshield._loading import make_printable
from scoreshield.bench.experiments import EXPERIMENTS, table
from scoreshield.bench.experiments.runner import SETTINGS
from scoreshield.bench.report import experiments as pictures
from scoreshield.bench.report.results_page import Picture
from scoreshield.bench.report.tables import mean, spread_text
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
    """One run folder: its rows, its pictures by name, the command that makes it, and its grid where it is known."""

    name: str
    folder: Path
    rows: list[Row]
    pictures: dict[str, Path]
    command: str
    settings: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def delta(self) -> float | None:
        """The one delta of tables and text, the strictest of the run; None where all is pure."""
        return min((row["delta"] for row in self.rows if row["delta"]), default=None)

    @cached_property
    def _strict(self) -> list[Row]:
        # At equal attack the noise does not depend on delta, which only says where its epsilon is read off.
        return [row for row in self.rows if row["setting"] == "advantage" or row["delta"] in (None, 0.0, self.delta)]

    @property
    def promise(self) -> str:
        """For captions: at which delta."""
        return "δ = 0" if self.delta is None else f"δ = {typeset_power(self.delta)} or 0"

    def where(self, **wanted: Any) -> list[Row]:
        """The rows at the one delta that agree with every given value."""
        return table.where(self._strict, **wanted)

    def value(self, **wanted: Any) -> float:
        return mean(self.where(**wanted))

    def said(self, **wanted: Any) -> str:
        """Mean ± standard deviation, or nothing where there is none."""
        return spread_text(self.where(**wanted))

    def datasets(self) -> list[str]:
        return list(dict.fromkeys(row["dataset"] for row in self.rows))

    def picture(self, stem: str, alt: str, reading: str) -> list[Picture]:
        """One picture, if the run has it."""
        path = self.pictures.get(stem)
        return [] if path is None else [Picture(path, alt, self.command, reading)]

    def at_equal_attack(self, dataset: str, metric: str) -> str:
        """The best and the Gaussian ones, of which one knows the public range too, at the advantage nearest to 0.9."""
        rows = self.where(setting="advantage", dataset=dataset, metric=metric)
        near = min((row["target_advantage"] for row in rows), key=lambda known: abs(known - 0.9), default=math.nan)
        here = table.where(rows, target_advantage=near)
        best = best_method(here)
        if best is None:
            return ""
        others = [
            (f"{method} gives {{}}", spread_text(table.where(here, method=method)))
            for method in ("gaussian, clamped", "gaussian", "noisy")
            if method != best
        ]
        return sentence(
            f"{dataset} at advantage {near:g}: ",
            [(f"{best} is best with {{}}", spread_text(table.where(here, method=best))), *others],
        )

    def nearest(self, epsilon: float) -> float:
        """The budget of the run nearest to a round one; NaN where there is none."""
        budgets = {row["epsilon"] for row in self.where(setting=("contract", "paper"))}
        return float(min(budgets, key=lambda known: abs(math.log(known / epsilon)), default=math.nan))

    def sizes(self) -> str:
        """How much was measured, and what the spread is a spread of."""
        parts, sampled = [], False
        for dataset in self.datasets():
            sizes = sorted({row["n"] for row in self.rows if row["dataset"] == dataset})
            n = f"{sizes[0]:,}" + (f" to {sizes[-1]:,}" if len(sizes) > 1 else "")
            what, whole = _WHOLE.get(dataset.split("/")[0], ("", 0))
            used = sizes[0] if what == "images" else self.settings.get("options", {}).get(what, 0)
            sampled = sampled or 0 < used < whole
            parts.append(f"{dataset}: n = {n}" + (f", {min(used, whole):,} of {whole:,} {what}" if used else ""))
        repeats = 1 + max(row["repeat"] for row in self.rows)
        if repeats == 1:
            spread = "one repeat, so no spread is known"
        else:
            over = "the sample and the noise" if sampled else "the noise alone"
            fresh = "a fresh sample and fresh noise" if sampled else "fresh noise on the same records"
            spread = f"{repeats} repeats with {fresh}: ± is one standard deviation over {over}"
        return f"Sizes: {'; '.join(parts)}. {spread[0].upper()}{spread[1:]}."


def best_method(rows: Sequence[Row]) -> str | None:
    """The method with the best mean; None where nothing was measured."""
    means = {method: mean(table.where(rows, method=method)) for method in dict.fromkeys(row["method"] for row in rows)}
    known = {method: value for method, value in means.items() if not math.isnan(value)}
    if not known:
        return None
    pick = max if rows[0]["better"] == "higher" else min
    return str(pick(known, key=lambda method: known[method]))


def sentence(opening: str, pieces: Iterable[tuple[str, str]]) -> str:
    """One sentence of the pieces whose value is known; nothing where none is."""
    known = [form.format(value) for form, value in pieces if value]
    return f"{opening}{', '.join(known)}." if known else ""


def environment(runs: dict[str, Run]) -> dict[str, str]:
    """Where the rows say that they were measured; where that differs, which runs were where."""
    found = {}
    for name in _ENVIRONMENT:
        places: dict[str, list[str]] = {}
        for run in runs.values():
            for value in dict.fromkeys(row.get(name) for row in run.rows):
                if value is not None:
                    places.setdefault(str(value), []).append(run.name)
        if places:
            told = [value + (f" ({', '.join(where)})" if len(places) > 1 else "") for value, where in places.items()]
            found[name] = "; ".join(told)
    return found


def read(runs: Path) -> dict[str, Run]:
    """Every finished run under a folder, by the name of its experiment."""
    found = {}
    for name in EXPERIMENTS:
        folder = runs / name
        if not (folder / "results.csv").exists():
            continue
        rows = [_without_marks(row) for row in table.read_results(folder / "results.csv")]
        if not rows:
            raise InvalidInput(f"{folder / 'results.csv'} holds no rows; run the experiment again.")
        made = {path.stem: path for path in pictures.draw(name, rows, folder / "figures")}
        settings = _settings(folder)
        found[name] = Run(name, folder, rows, made, _command(name, settings), settings)
    if not found:
        raise InvalidInput(
            f"There is no finished run under {runs}; make one with: scoreshield bench noise --quick --out {runs}/noise"
        )
    return found


#: Columns of JSON, which no page shows.
_JSON = ("facts", "guarantee")
#: What Markdown, HTML or a chart would take for a mark of its own.
_MARKS = re.compile(r"[\[\]<>`*\\|&!$^~{}]|(?<=http):(?=/)|(?<=https):(?=/)|(?<=www)\.", re.IGNORECASE)


def _without_marks(row: Row) -> Row:
    """A row whose names are plain text: a table from elsewhere could name a link or a script where a method stands."""
    return {
        name: make_printable(_MARKS.sub("?", text)) if isinstance(text, str) and name not in _JSON else text
        for name, text in row.items()
    }


def _settings(folder: Path) -> dict[str, Any]:
    """The grid of a run; empty where the folder has it no more."""
    try:
        return dict(_loading.parse_json(_loading.read_bytes(folder / SETTINGS))["grid"])
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _command(name: str, settings: dict[str, Any]) -> str:
    """The command that makes a run with these settings, as far as they are ones that ship."""
    experiment = EXPERIMENTS[name]
    how = " --grid GRID.yaml"
    for quick in (True, False):
        if settings == json.loads(json.dumps(experiment.make_grid(quick=quick).to_dict())):
            how = " --quick" if quick else ""
    data = " --data-dir DIR" if experiment.files else ""
    return f"scoreshield bench {name}{how}{data} --out runs/{name}"
