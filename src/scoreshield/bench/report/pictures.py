"""The pictures of each experiment, in the paper's layout, from its table of results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from scoreshield._formatting import typeset_power
from scoreshield.bench.experiments.mechanisms import MECHANISMS
from scoreshield.bench.report.bands import MOST_CURVES, draw_bands, draw_bands_by_advantage, draw_bars
from scoreshield.bench.report.frames import list_values, select_rows
from scoreshield.errors import FileError, InvalidInput
from scoreshield.report import plots
from scoreshield.report.plots import AMBER, BLUE, INK, RED, VIOLET, add_captions, make_legend_key, make_panels

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Row = dict[str, Any]
#: The name of a picture, and what draws it.
PlannedPicture = tuple[str, Callable[[], "Figure"]]

#: Laws that are named after people.
_LAW_NAMES = {"gaussian": "Gaussian", "laplace": "Laplace"}
_HOLLOW = "Hollow marks: the claimed ε is not what the replacement of one whole record gets."
_EQUAL = (
    "All methods are as easy to attack: the best membership test against one release has the advantage on the x axis."
)
#: All mechanisms but selection, which names ten records at any cost.
_SCORES = ("gaussian (paper)", *(name for name in MECHANISMS if name != "selection"))
_COLOURS = (BLUE, RED, AMBER, VIOLET, "#11866f", "#7eb2e6", "#737306", "#4c173f")
_MARKERS = "osD^vPX"
_PAPER = ("noisy (paper)", "aap (paper)", "exact, on the paper's noise")
_OURS = ("noisy", "aap", "exact", "rank", "shrinkage", "identity", "sure", "index", "gaussian index")
#: Drawn first where not all have room: the baselines, and what the text beside the pictures names.
_KEPT_SCORES = ("gaussian (paper)",)
_KEPT_AT_ATTACK = ("gaussian",)
_KEPT_OURS = ("noisy", "exact", "index")


def draw_pictures(
    name: str,
    rows: Sequence[Row] | pd.DataFrame,
    folder: Path,
    *,
    report_omission: Callable[[str], object] | None = None,
) -> list[Path]:
    """Draw every picture that the rows of an experiment allow, each file whole or not at all.

    Args:
        name: of the experiment.
        rows: its table of results.
        folder: where the pictures go.
        report_omission: called with one line for each picture that cannot be drawn. An omission does not fail a
            finished run.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {folder}: {error.strerror}.") from None
    paths = []
    for stem, draw in plan_pictures(name, rows):
        try:
            figure = draw()
        except InvalidInput as error:
            if report_omission is not None:
                report_omission(f"{stem}.png is left out. {error}")
            continue
        plots.save_picture(figure, folder / f"{stem}.png")
        paths.append(folder / f"{stem}.png")
    return paths


def plan_pictures(name: str, rows: Sequence[Row] | pd.DataFrame) -> Iterator[PlannedPicture]:
    """Plan the pictures of an experiment, without drawing them."""
    frame = pd.DataFrame(rows)
    frame["value"] = pd.to_numeric(frame["value"])  # a gap is a value out of reach
    if name in ("dp-fr", "dp-rag"):
        yield from _plan_score_pictures(name, frame)
    elif name.startswith("gram-"):
        yield from _plan_gram_pictures(name, frame)
    elif name == "runtime":
        yield from _plan_runtime_pictures(frame)
    else:
        yield from _plan_noise_pictures(frame)


def _plan_score_pictures(name: str, frame: pd.DataFrame) -> Iterator[PlannedPicture]:
    delta = min(select_rows(frame, setting="paper")["delta"].tolist(), default=0.0)
    budget = select_rows(frame[frame["setting"] != "advantage"], delta=(None, 0.0, delta))
    attack = select_rows(frame, setting=("clean", "advantage"))
    laws = f"Gaussian noise at δ = {typeset_power(delta)}, the others pure." if delta else "Pure mechanisms."
    for metric in _list_metrics(frame):
        stem = f"{name}-{make_slug(metric)}"
        methods = _list_methods(budget, metric, _SCORES)
        if methods:
            yield stem, partial(
                draw_bands, budget, metric=metric, rows_by=None, columns_by="dataset", methods=methods,
                keep=_KEPT_SCORES, title=f"{metric} at the same (ε, δ)",
                caption=f"{laws} Mean ± one standard deviation over repeats. {_HOLLOW}",
            )  # fmt: skip
        methods = _list_methods(attack, metric, _SCORES)
        if methods:
            yield f"{stem}-attack", partial(
                draw_bands_by_advantage, attack, metric=metric, columns_by="dataset", methods=methods,
                keep=_KEPT_AT_ATTACK, title=f"{metric} at the same attack advantage", caption=_EQUAL,
            )  # fmt: skip


def _plan_gram_pictures(name: str, frame: pd.DataFrame) -> Iterator[PlannedPicture]:
    for dataset, here in frame.groupby("dataset", sort=False):
        paper = select_rows(here, setting=("clean", "paper"))
        ours = select_rows(here, setting=("clean", "contract"))
        delta = min((delta for delta in list_values(ours, "delta") if delta), default=0.0)  # as in the tables
        ours = select_rows(ours, delta=(None, 0.0, delta))
        noise = f"Gaussian noise at δ = {typeset_power(delta)}; the index is pure." if delta else "Pure."
        attack = select_rows(here, setting=("clean", "advantage"))
        for metric in _list_metrics(here):
            stem = f"{name}-{make_slug(str(dataset))}-{make_slug(metric)}"
            size = f"{dataset}, {describe_size(here)}"
            methods = _list_methods(paper, metric, _PAPER)
            if methods:
                yield f"{stem}-paper", partial(
                    draw_bands, paper, metric=metric, methods=methods, title=f"As published: {metric}, {size}",
                    caption="The paper's rule and Gram radius; its projection and the exact one, of the same noisy "
                    f"matrix. {_HOLLOW}",
                )  # fmt: skip
            methods = _list_methods(ours, metric, _OURS)
            if methods:
                yield stem, partial(
                    draw_bands, ours, metric=metric, rows_by=None, columns_by="radius", methods=methods,
                    keep=_KEPT_OURS, title=f"Ours, exactly calibrated: {metric}, {size}",
                    caption=f"{noise} Mean ± one standard deviation over repeats. {_HOLLOW}",
                )  # fmt: skip
            methods = _list_methods(attack, metric, _OURS)
            if methods:
                yield f"{stem}-attack", partial(
                    draw_bands_by_advantage, attack, metric=metric, columns_by=None, methods=methods,
                    keep=_KEPT_OURS, title=f"{metric} at the same attack advantage, one whole record, {size}",
                    caption=_EQUAL,
                )  # fmt: skip


def describe_size(frame: pd.DataFrame) -> str:
    """Say how many records there are; a fresh sample in each repeat may be one more or less."""
    return f"n {'=' if frame['n'].nunique() == 1 else '≈'} {frame['n'].mean():,.0f}"


def _copy_pure_rows(frame: pd.DataFrame) -> pd.DataFrame:
    """Copy each pure row to every delta of the others: a pure promise is drawn beside each of them."""
    contract = frame["setting"] == "contract"
    deltas = [delta for delta in list_values(frame[contract], "delta") if delta]
    is_pure = contract & (frame["delta"] == 0)
    if not deltas:
        return frame
    copies = [frame[is_pure].assign(delta=delta) for delta in deltas]
    # In the order of the rows, because panels and legends follow it.
    return pd.concat([frame[~is_pure], *copies]).sort_index(kind="stable").reset_index(drop=True)


def _plan_runtime_pictures(frame: pd.DataFrame) -> Iterator[PlannedPicture]:
    timed = select_rows(frame, metric="seconds").assign(seconds=lambda rows: rows["value"])
    for radius in dict.fromkeys(None if pd.isna(radius) else radius for radius in timed["radius"]):
        part = select_rows(timed, radius=radius)
        noise = "one whole record" if radius is None else f"Gram radius {radius:g}"
        yield f"runtime-{'record' if radius is None else make_slug(f'{radius:g}')}", partial(
            draw_bars, part, title=f"Time of a projection, noise for {noise}",
            methods=_list_methods(part, "seconds", ("newton", "aap", "dykstra", "sdp")),
            caption="The same noisy matrix for each; one core. newton is exact and ScoreShield's own, aap is the "
            "paper's, sdp is CVXPY with Clarabel.",
        )  # fmt: skip


def _plan_noise_pictures(frame: pd.DataFrame) -> Iterator[PlannedPicture]:
    metric = "standard deviation"
    known = select_rows(frame[frame["method"] != "float gaussian"], metric=metric)
    deltas = [delta for delta in list_values(known, "delta") if delta]
    several = len(deltas) > 1
    if not known.empty:
        yield "noise-std", partial(
            draw_bands, _copy_pure_rows(known) if several else known, metric=metric, rows_by=None,
            columns_by="delta" if several else None, title="Noise on one score, sensitivity 2",
            caption=_describe_deltas(known),
        )  # fmt: skip


def _describe_deltas(frame: pd.DataFrame) -> str:
    """Say at which delta each drawn law is private; several deltas have a column each."""
    deltas = [delta for delta in list_values(frame, "delta") if delta]
    approximate, pure = (
        " and ".join(_LAW_NAMES.get(name, name) for name in frame[is_chosen]["method"].unique())
        for is_chosen in (frame["delta"] > 0, frame["delta"] == 0)
    )
    parts = [f"{approximate} noise at δ = {typeset_power(deltas[0])}"] if len(deltas) == 1 else []
    parts += [f"{pure} noise is pure (δ = 0)"] if pure else []
    text = "; ".join(parts)
    return f"{text[0].upper()}{text[1:]}." if text else ""


def describe_release(radius: float | None, n: int) -> str:
    """Say in words what was released as published."""
    return "scores of a query" if radius is None or pd.isna(radius) else f"Gram matrix of radius {radius:g}, n = {n:,}"


def draw_true_epsilons(published: pd.DataFrame) -> Figure:
    """Draw the true epsilon by the claimed one, log against log: scores, and the largest matrix of each radius.

    Args:
        published: rows of the setting "paper", with a column ``released`` that says what was released.
    """
    figure, panels = make_panels(1, 1, (7.6, 4.6))
    axes = panels[0, 0]
    # The table has all.
    published = published[published["delta"] == published.groupby("released")["delta"].transform("min")]
    largest = published.groupby("radius", dropna=False)["n"].transform("max")
    published = published[published["radius"].isna() | (published["n"] == largest)]
    curves = list(published.groupby(["radius", "released", "delta"], dropna=False))
    curves.sort(key=lambda curve: not pd.isna(curve[0][0]))  # scores first
    keys = []
    for place, ((_, released, delta), rows) in enumerate(curves[: MOST_CURVES - 1]):
        look = {"color": _COLOURS[place % len(_COLOURS)], "marker": _MARKERS[place % len(_MARKERS)], "linewidth": 1.4}
        label = f"{released}, δ = {typeset_power(delta)}"
        points = rows.drop_duplicates("epsilon", keep="last").sort_values("epsilon")
        axes.plot(points["epsilon"], points["true_epsilon"], **look, markersize=4.5, label=label)
        keys.append(make_legend_key(**look, label=label))
    low, high = published["epsilon"].min(), published["epsilon"].max()
    axes.plot([low, high], [low, high], color=INK, linestyle=(0, (4, 1.6)), linewidth=1.2)
    keys.append(make_legend_key(color=INK, linestyle=(0, (4, 1.6)), label="true = claimed"))
    axes.set(xscale="log", yscale="log", xlabel="claimed ε", ylabel="true ε when one record is replaced")
    axes.grid(color="#e6e9ec", linewidth=0.8)
    add_captions(
        figure,
        "The paper's promise and the true one",
        "Same δ on both axes, the smallest of each run; exact, not simulated. Of each radius the largest matrix is "
        "drawn; the table has all.",
        keys,
        columns=2,
    )
    return figure


def _list_metrics(frame: pd.DataFrame) -> list[str]:
    """List the metrics of which at least one value is within reach."""
    return [str(metric) for metric in frame.dropna(subset="value")["metric"].unique()]


def _list_methods(frame: pd.DataFrame, metric: str, methods: Sequence[str]) -> list[str]:
    """List those of these methods, in this order, that the rows have for the metric."""
    known = set(select_rows(frame, metric=metric)["method"])
    return [method for method in methods if method in known]


def make_slug(text: str) -> str:
    """Make a part of a file name of a text."""
    return "".join(letter if letter.isalnum() else "-" for letter in text.lower()).replace("--", "-").strip("-")
