"""The pictures of each experiment, in the paper's layout, from its table of results."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scoreshield._formatting import typeset_power
from scoreshield.bench.experiments.mechanisms import MECHANISMS
from scoreshield.errors import FileError, InvalidInput
from scoreshield.report import plots
from scoreshield.report.bands import advantage_chart, band_grid, bars
from scoreshield.report.sheet import AMBER, BLUE, INK, RED, VIOLET, finish, legend_key, sheet

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
#: The name of a picture, and what draws it.
_Picture = tuple[str, Callable[[], "Figure"]]

_HOLLOW = "Hollow marks: the claimed ε is not what the replacement of one whole record gets."
_EQUAL = (
    "All methods are as easy to attack: the best membership test against one release has the advantage on the x axis."
)
_SCORES = ("gaussian (paper)", *(name for name in MECHANISMS if name != "selection"))  # which names ten at any cost
_COLOURS = (BLUE, RED, AMBER, VIOLET, "#11866f", "#7eb2e6", "#737306", "#4c173f")
_MARKERS = "osD^vPX"
_PAPER = ("noisy (paper)", "aap (paper)", "exact, on the paper's noise")
_OURS = ("noisy", "aap", "exact", "rank", "shrinkage", "identity", "sure", "index", "gaussian index")


def draw(
    name: str, rows: Sequence[Row], folder: Path, *, left_out: Callable[[str], object] | None = None
) -> list[Path]:
    """Every picture that the rows of an experiment allow, each file whole or not at all.

    ``left_out`` is told, in one line each, of pictures that cannot be drawn, which must not fail a finished run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    paths = []
    for stem, make in _pictures(name, [_plain(row) for row in rows]):
        try:
            figure = make()
        except InvalidInput as error:
            if left_out is not None:
                left_out(f"{stem}.png is left out. {error}")
            continue
        plots.save(figure, folder / f"{stem}.png")
        paths.append(folder / f"{stem}.png")
    return paths


def _plain(row: Row) -> Row:
    """A gap in the table is a value out of reach."""
    return row | {"value": math.nan if row["value"] is None else row["value"]}


def _pictures(name: str, rows: list[Row]) -> Iterator[_Picture]:
    if name in ("dp-fr", "dp-rag"):
        yield from _score_pictures(name, rows)
    elif name.startswith("gram-"):
        yield from _gram_pictures(name, rows)
    elif name == "runtime":
        yield from _runtime_pictures(rows)
    else:
        yield from _noise_pictures(rows)


def _score_pictures(name: str, rows: list[Row]) -> Iterator[_Picture]:
    delta = min((row["delta"] for row in rows if row["setting"] == "paper"), default=0.0)
    budget = [row for row in rows if row["setting"] != "advantage" and row["delta"] in (None, 0.0, delta)]
    attack = [row for row in rows if row["setting"] in ("clean", "advantage")]
    words = f"Gaussian noise at δ = {typeset_power(delta)}, the others pure." if delta else "Pure mechanisms."
    for metric in _metrics(rows):
        stem = f"{name}-{slug(metric)}"
        if _present(budget, metric, _SCORES):
            yield stem, lambda metric=metric: band_grid(  # type: ignore[misc]
                budget, metric=metric, rows_by=None, columns_by="dataset", methods=_present(budget, metric, _SCORES),
                title=f"{metric} at the same (ε, δ)",
                caption=f"{words} Mean ± one standard deviation over repeats. {_HOLLOW}",
            )  # fmt: skip
        if _present(attack, metric, _SCORES):
            yield f"{stem}-attack", lambda metric=metric: advantage_chart(  # type: ignore[misc]
                attack, metric=metric, columns_by="dataset", methods=_present(attack, metric, _SCORES),
                title=f"{metric} at the same attack advantage", caption=_EQUAL,
            )  # fmt: skip


def _gram_pictures(name: str, rows: list[Row]) -> Iterator[_Picture]:
    rows = _in_every_column(rows)
    for dataset in dict.fromkeys(row["dataset"] for row in rows):
        here = [row for row in rows if row["dataset"] == dataset]
        for metric in _metrics(here):
            stem = f"{name}-{slug(dataset)}-{slug(metric)}"
            size = f"{dataset}, {_size(here)}"
            paper = [row for row in here if row["setting"] in ("clean", "paper")]
            if _present(paper, metric, _PAPER):
                yield f"{stem}-paper", lambda paper=paper, metric=metric, size=size: band_grid(  # type: ignore[misc]
                    paper, metric=metric, methods=_present(paper, metric, _PAPER),
                    title=f"As published: {metric}, {size}",
                    caption="The paper's rule and Gram radius; its projection and the exact one, of the same noisy "
                    f"matrix. {_HOLLOW}",
                )  # fmt: skip
            ours = [row for row in here if row["setting"] in ("clean", "contract")]
            if _present(ours, metric, _OURS):
                yield stem, lambda ours=ours, metric=metric, size=size: band_grid(  # type: ignore[misc]
                    ours, metric=metric, methods=_present(ours, metric, _OURS),
                    title=f"Ours, exactly calibrated: {metric}, {size}",
                    caption=f"Exact calibration; mean ± one standard deviation over repeats. {_HOLLOW} The index is "
                    "pure (δ = 0): the same curve in each column.",
                )  # fmt: skip
            attack = [row for row in here if row["setting"] in ("clean", "advantage")]
            if _present(attack, metric, _OURS):
                yield (
                    f"{stem}-attack"
                ), lambda attack=attack, metric=metric, size=size: advantage_chart(  # type: ignore[misc]
                    attack, metric=metric, columns_by=None, methods=_present(attack, metric, _OURS),
                    title=f"{metric} at the same attack advantage, one whole record, {size}", caption=_EQUAL,
                )  # fmt: skip


def _size(rows: Sequence[Row]) -> str:
    """How many records there are; a fresh sample in each repeat may be one more or less."""
    sizes = [row["n"] for row in rows]
    return f"n {'=' if len(set(sizes)) == 1 else '≈'} {statistics.mean(sizes):,.0f}"


def _in_every_column(rows: list[Row]) -> list[Row]:
    """A pure promise has no delta of its own: it is drawn beside each that the others have."""
    deltas = sorted({row["delta"] for row in rows if row["setting"] == "contract" and row["delta"]})
    found = []
    for row in rows:
        pure = row["setting"] == "contract" and row["delta"] == 0
        found.extend([row | {"delta": delta} for delta in deltas] if pure and deltas else [row])
    return found


def _runtime_pictures(rows: list[Row]) -> Iterator[_Picture]:
    timed = [row | {"seconds": row["value"]} for row in rows if row["metric"] == "seconds"]
    for radius in dict.fromkeys(row["radius"] for row in timed):
        part = [row for row in timed if row["radius"] == radius]
        who = "one whole record" if radius is None else f"Gram radius {radius:g}"
        yield (
            f"runtime-{'record' if radius is None else slug(f'{radius:g}')}"
        ), lambda part=part, who=who: bars(  # type: ignore[misc]
            part, title=f"Time of a projection, noise for {who}",
            methods=_present(part, "seconds", ("newton", "aap", "dykstra", "sdp")),
            caption="The same noisy matrix for each; one core. newton is exact and ScoreShield's own, aap is the "
            "paper's, sdp is CVXPY with Clarabel.",
        )  # fmt: skip


def _noise_pictures(rows: list[Row]) -> Iterator[_Picture]:
    metric = "standard deviation"
    known = [row for row in rows if row["method"] != "float gaussian" and row["metric"] == metric]
    deltas = sorted({row["delta"] for row in known if row["delta"]})
    several = len(deltas) > 1
    at = f"Gaussian noise at δ = {typeset_power(deltas[0])}; " if len(deltas) == 1 else ""
    if known:
        yield "noise-std", lambda: band_grid(
            _in_every_column(known) if several else known, metric=metric, rows_by=None,
            columns_by="delta" if several else None, title="Noise on one score, sensitivity 2",
            caption=f"{at}Laplace and staircase noise are pure.",
        )  # fmt: skip


def released(row: Row) -> str:
    """What was released, in words."""
    if row["radius"] is None:
        return "scores of a query"
    return f"Gram matrix of radius {row['radius']:g}, n = {row['n']:,}"


def claimed_and_true(rows: Sequence[Row]) -> Figure:
    """The true epsilon against the claimed one, log against log, one curve for each thing released as published."""
    figure, panels = sheet(1, 1, (7.6, 4.6))
    axes = panels[0, 0]
    curves: dict[tuple[str, float], dict[float, float]] = {}
    least = {released(row): min(other["delta"] for other in rows if released(other) == released(row)) for row in rows}
    for row in rows:
        if row["delta"] == least[released(row)]:  # the paper's strictest; the table has all
            curves.setdefault((released(row), row["delta"]), {})[row["epsilon"]] = row["true_epsilon"]
    keys = []
    for place, ((what, delta), points) in enumerate(sorted(curves.items())):
        look = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "linewidth": 1.4}
        label = f"{what}, δ = {typeset_power(delta)}"
        axes.plot(*zip(*sorted(points.items()), strict=True), **look, markersize=4.5, label=label)
        keys.append(legend_key(**look, label=label))
    low, high = min(row["epsilon"] for row in rows), max(row["epsilon"] for row in rows)
    axes.plot([low, high], [low, high], color=INK, linestyle=(0, (4, 1.6)), linewidth=1.2)
    keys.append(legend_key(color=INK, linestyle=(0, (4, 1.6)), label="true = claimed"))
    axes.set(xscale="log", yscale="log", xlabel="claimed ε", ylabel="true ε when one record is replaced")
    axes.grid(color="#e6e9ec", linewidth=0.8)
    finish(
        figure,
        "The paper's promise and the true one",
        "Same δ on both axes, the smallest of each run; exact, not simulated.",
        keys,
        columns=2,
    )
    return figure


def _metrics(rows: Sequence[Row]) -> list[str]:
    """Those of which at least one value is within reach."""
    return list(dict.fromkeys(row["metric"] for row in rows if not math.isnan(row["value"])))


def _present(rows: Sequence[Row], metric: str, methods: Sequence[str]) -> list[str]:
    """Of these methods, in this order, those that the rows have for the metric."""
    found = {row["method"] for row in rows if row["metric"] == metric}
    return [method for method in methods if method in found]


def slug(text: str) -> str:
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).replace("--", "-").strip("-")
