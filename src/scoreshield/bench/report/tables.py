"""Tables of results that state both truths: what was claimed and measured, and what holds when a record is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from scoreshield._formatting import format_compact, format_measurement, typeset_power
from scoreshield.bench.experiments.gram import EQUAL, NOTHING
from scoreshield.bench.report.frames import select_rows, summarise
from scoreshield.bench.report.results_page import Best, ResultTable

_OUT_OF_REACH, _NOT_RUN = "—", "·"
#: Without privacy: the most that can be gained, and what is reached without any similarity.
_REFERENCES = ("non-private", NOTHING, EQUAL)


class TableLine(NamedTuple):
    """A row of a table.

    Attributes:
        name: the first cell.
        texts: the other cells.
        cells: the result rows behind each text, of a line that competes for the best value.
    """

    name: str
    texts: list[str]
    cells: list[pd.DataFrame] | None = None


def compute_mean(frame: pd.DataFrame) -> float:
    """Compute the mean of the measured values; NaN where there is none."""
    return summarise(frame["value"]).mean


def format_spread(frame: pd.DataFrame) -> str:
    """Write mean ± standard deviation over repeats; an empty text where nothing was measured."""
    summary = summarise(frame["value"])
    if not summary.count:
        return ""
    spread = f" ± {format_measurement(summary.sd)}" if summary.count > 1 else ""
    return format_measurement(summary.mean) + spread


# ---- What a value has to beat.


def find_references(frame: pd.DataFrame) -> pd.Series[float]:
    """Find what each row has to beat: the best value without any similarity in its repeat, or what a guess gives.

    Returns:
        One reference per row, with the index of the frame.
    """
    keys = ["dataset", "metric", "repeat"]
    baselines = select_rows(frame, setting="clean", method=(NOTHING, EQUAL)).dropna(subset="value")
    best = {
        key: group["value"].max() if group["better"].iloc[0] == "higher" else group["value"].min()
        for key, group in baselines.groupby(keys)
    }
    references = [
        best[key] if key in best else _guess(metric=key[1], better=better, n=n)
        for key, better, n in zip(
            frame[keys].itertuples(index=False, name=None), frame["better"], frame["n"], strict=True
        )
    ]
    return pd.Series(references, index=frame.index, dtype=float)


def beats_reference(frame: pd.DataFrame, references: pd.Series[float]) -> bool:
    """Whether values beat their references, repeat by repeat, by more than one standard deviation of the difference."""
    rows = frame[frame["value"].notna()]
    sign = 1.0 if (frame["better"] == "higher").all() else -1.0
    gains = sign * (rows["value"] - references.reindex(rows.index))
    if not np.isfinite(gains.to_numpy(dtype=np.float64)).all():
        return True  # there is nothing to beat
    summary = summarise(gains)
    return summary.count > 1 and summary.mean > summary.sd


def _guess(metric: str, better: str, n: int) -> float:
    """Give the value of an answer that does not look at the records."""
    name, _, at = metric.partition("@")
    if name in ("accuracy", "auc", "eer"):
        return 0.5
    if name == "tar":
        return float(at)
    if name in ("recall", "overlap"):
        return min(1.0, float(at.split(",")[0]) / float(n))
    return -math.inf if better == "higher" else math.inf


# ---- Tables.


def build_score_table(
    frame: pd.DataFrame,
    methods: Sequence[str],
    *,
    caption: str,
    command: str,
    ceiling: tuple[str, Callable[[float], float]] | None = None,
    folded: bool = False,
) -> list[ResultTable]:
    """Build the table of one metric of a score experiment by epsilon: the paper as published, then ours.

    Returns:
        One table, or none where nothing private was run.
    """
    ours, paper = select_rows(frame, setting="contract"), select_rows(frame, setting="paper")
    columns = _sort_column(select_rows(frame, setting=("contract", "paper")), "epsilon")
    lines = _list_references(frame, columns)
    if not paper.empty:
        lines += [
            _measure_line("the paper's Gaussian, as published", paper, "epsilon", columns, competes=False),
            _state_line("its true ε when one record is replaced", paper, "true_epsilon", columns),
            _state_line("its true δ at the claimed ε", paper, "true_delta", columns),
        ]
    for method in methods:
        part = select_rows(ours, method=method)
        if not part.empty:
            lines.append(_measure_line(method + _describe_delta(part), part, "epsilon", columns))
    lines += _state_lines("attack advantage of", ours, methods, "attack_advantage", columns)
    if ceiling is not None:
        lines.append(TableLine(ceiling[0], [f"{ceiling[1](epsilon):.3f}" for epsilon in columns]))
    return _build_table(caption, [f"ε = {epsilon:g}" for epsilon in columns], lines, frame, command, folded)


def build_gram_table(
    frame: pd.DataFrame, methods: Sequence[str], *, caption: str, command: str, folded: bool = False
) -> list[ResultTable]:
    """Build the table of one metric of a matrix experiment: as published, at the same radius, for one whole record.

    Returns:
        One table, or none where nothing private was run.
    """
    private = select_rows(frame, setting=("paper", "contract"))
    radius = float(pd.to_numeric(private["radius"]).max())
    columns = _sort_column(private, "epsilon")
    lines = _list_references(frame, columns)
    for setting, at, title in (
        ("paper", radius, f"as published, radius {radius:g}"),
        ("contract", radius, f"radius {radius:g}"),
        ("contract", None, "one record"),
    ):
        if at is not None and math.isnan(at):
            continue
        here = select_rows(private, setting=setting, radius=at)
        for method in select_rows(here, method=list(methods))["method"].unique():
            part = select_rows(here, method=method)
            name = f"{title}: {method.replace(' (paper)', '')}{_describe_delta(part)}"
            lines.append(_measure_line(name, part, "epsilon", columns, competes=at is None))
        if at is not None and not here.empty:
            lines.append(_state_line(f"{title}: true ε when one record is replaced", here, "true_epsilon", columns))
    return _build_table(caption, [f"ε = {epsilon:g}" for epsilon in columns], lines, frame, command, folded)


def build_attack_table(
    frame: pd.DataFrame, methods: Sequence[str], *, caption: str, command: str, folded: bool = True
) -> list[ResultTable]:
    """Build the table of one metric at equal attack advantage, with the epsilon that each mechanism has there.

    Returns:
        One table, or none where nothing was run at a stated advantage.
    """
    here = select_rows(frame, setting="advantage")
    columns = _sort_column(here, "target_advantage")
    lines = _list_references(frame, columns)
    for method in methods:
        part = select_rows(here, method=method)
        if not part.empty:
            lines.append(_measure_line(method + _describe_delta(part), part, "target_advantage", columns))
    lines += _state_lines("ε of", here, methods, "epsilon", columns, key="target_advantage")
    return _build_table(caption, [f"advantage {value:g}" for value in columns], lines, frame, command, folded)


def _sort_column(frame: pd.DataFrame, name: str) -> list[float]:
    return sorted(pd.to_numeric(frame[name]).unique().tolist())


def _describe_delta(frame: pd.DataFrame) -> str:
    """Write what follows a method's name: its delta, or that it has none."""
    delta = frame["delta"].iloc[0]
    return ", pure" if pd.isna(delta) or not delta else f", δ = {typeset_power(delta)}"


def _list_references(frame: pd.DataFrame, columns: Sequence[float]) -> list[TableLine]:
    """List the values without privacy, which are the same in every column."""
    parts = ((method, select_rows(frame, setting="clean", method=method)) for method in _REFERENCES)
    return [TableLine(method, [_format_cell(part)] * len(columns)) for method, part in parts if not part.empty]


def _measure_line(
    name: str, frame: pd.DataFrame, key: str, columns: Sequence[float], *, competes: bool = True
) -> TableLine:
    groups = dict(list(frame.groupby(key)))
    cells = [groups.get(at, frame[:0]) for at in columns]
    return TableLine(name, [_format_cell(cell) for cell in cells], cells if competes else None)


def _format_cell(frame: pd.DataFrame) -> str:
    """Write mean and standard deviation; a dash where it is out of reach, a dot where it was not run."""
    return _NOT_RUN if frame.empty else format_spread(frame) or _OUT_OF_REACH


def _state_line(name: str, frame: pd.DataFrame, fact: str, columns: Sequence[float]) -> TableLine:
    """State a fact of the promise, which is not measured; where samples differ in size, the worst of them."""
    worst: dict[Any, float] = frame.dropna(subset=fact).groupby("epsilon")[fact].max().to_dict()
    return TableLine(name, [format_compact(worst[at]) if at in worst else _NOT_RUN for at in columns])


def _state_lines(
    name: str, frame: pd.DataFrame, methods: Sequence[str], fact: str, columns: Sequence[float], key: str = "epsilon"
) -> list[TableLine]:
    """State a fact in one line for all methods of which it is the same."""
    worst: dict[Any, float] = frame.dropna(subset=fact).groupby(["method", key])[fact].max().to_dict()
    lines: dict[tuple[str, ...], list[str]] = {}
    for method in methods:
        texts = tuple(format_compact(worst[method, at]) if (method, at) in worst else _NOT_RUN for at in columns)
        if any(text != _NOT_RUN for text in texts):
            lines.setdefault(texts, []).append(method)
    return [TableLine(f"{name} {' / '.join(methods)}", list(texts)) for texts, methods in lines.items()]


def _build_table(
    caption: str, header: list[str], lines: list[TableLine], frame: pd.DataFrame, command: str, folded: bool
) -> list[ResultTable]:
    if not header:
        return []
    side: Best = "max" if frame["better"].iloc[0] == "higher" else "min"
    references = find_references(frame)
    unclear = [
        (place, column)
        for place, line in enumerate(lines)
        for column, cell in enumerate(line.cells or (), 1)
        if not beats_reference(cell, references)
    ]
    return [
        ResultTable(
            caption=caption,
            header=["", *header],
            rows=[[line.name, *line.texts] for line in lines],
            command=command,
            best=[None, *([side] * len(header))],
            reference=[place for place, line in enumerate(lines) if line.cells is None],
            unclear=unclear,
            folded=folded,
        )
    ]
