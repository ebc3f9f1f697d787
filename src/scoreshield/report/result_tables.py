"""Tables of results that tell both truths: what was claimed and measured, and what it is when a record is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from scoreshield.report.results_page import Best, ResultTable
from scoreshield.report.sheet import power_of_ten

Row = dict[str, Any]

_OUT_OF_REACH, _NOT_RUN = "—", "·"
#: A row of the table: its name, one text a column, and whether it competes for the best value.
Line = tuple[str, list[str], bool]


def mean(rows: Iterable[Row]) -> float:
    """Of the values there are; NaN where there are none."""
    values = [row["value"] for row in rows if row["value"] is not None]
    return float(np.mean(values)) if values else math.nan


def score_table(
    rows: Sequence[Row],
    methods: Sequence[str],
    *,
    caption: str,
    command: str,
    ceiling: tuple[str, Callable[[float], float]] | None = None,
    folded: bool = False,
) -> ResultTable:
    """One metric of a score experiment against epsilon: the paper as published with its true epsilon, then ours."""
    ours = [row for row in rows if row["setting"] == "contract"]
    delta = max((row["delta"] for row in rows if row["setting"] == "paper"), default=0.0)
    paper = [row for row in rows if row["setting"] == "paper" and row["delta"] == delta]
    columns = sorted({row["epsilon"] for row in (*ours, *paper)})
    lines = [_constant(rows, columns)]
    if paper:
        lines += [
            _line("the paper's Gaussian, as published", paper, "epsilon", columns, competes=False),
            _fact("its true ε when one record is replaced", paper, "true_epsilon", columns),
            _fact("its true δ at the claimed ε", paper, "true_delta", columns),
        ]
    for method in methods:
        part = [row for row in ours if row["method"] == method and row["delta"] in (0.0, delta)]
        if part:
            lines.append(_line(method + _promise(part), part, "epsilon", columns))
    gaussian = [row for row in ours if row["method"] == "gaussian" and row["delta"] == delta]
    pure = [row for row in ours if row["delta"] == 0.0 and row["method"] != "laplace"]
    lines += [_fact("attack advantage, gaussian", gaussian, "attack_advantage", columns)] if gaussian else []
    lines += [_fact("attack advantage, pure", pure, "attack_advantage", columns)] if pure else []
    if ceiling is not None:
        lines.append((ceiling[0], [f"{ceiling[1](epsilon):.3f}" for epsilon in columns], False))
    return _table(caption, [f"ε = {epsilon:g}" for epsilon in columns], lines, rows, command, folded)


def gram_table(
    rows: Sequence[Row], methods: Sequence[str], *, caption: str, command: str, folded: bool = False
) -> ResultTable:
    """One metric of a matrix experiment: as published, ours at the same radius, ours for one whole record."""
    private = [row for row in rows if row["setting"] in ("paper", "contract")]
    delta = min(row["delta"] for row in private if row["delta"])
    radius = max((row["radius"] for row in private if row["radius"] is not None), default=None)
    columns = sorted({row["epsilon"] for row in private})
    lines = [_constant(rows, columns)]
    for setting, at, title in (
        ("paper", radius, f"as published, radius {radius}"),
        ("contract", radius, f"radius {radius}"),
        ("contract", None, "one record"),
    ):
        here = [
            row
            for row in private
            if row["setting"] == setting and row["radius"] == at and row["delta"] in (0.0, delta)
        ]  # fmt: skip
        if not here or (setting == "paper" and radius is None):
            continue
        for method in dict.fromkeys(row["method"] for row in here if row["method"] in methods):
            part = [row for row in here if row["method"] == method]
            name = f"{title}: {method.replace(' (paper)', '')}{_promise(part)}"
            lines.append(_line(name, part, "epsilon", columns, competes=at is None))
        if at is not None:
            lines.append(_fact(f"{title}: true ε when one record is replaced", here, "true_epsilon", columns))
    return _table(caption, [f"ε = {epsilon:g}" for epsilon in columns], lines, rows, command, folded)


def attack_table(
    rows: Sequence[Row], methods: Sequence[str], *, caption: str, command: str, folded: bool = True
) -> ResultTable:
    """One metric at equal attack advantage, with the epsilon that each kind of mechanism has there."""
    here = [row for row in rows if row["setting"] == "advantage"]
    columns = sorted({row["target_advantage"] for row in here})
    lines = [_constant(rows, columns)]
    for method in methods:
        part = [row for row in here if row["method"] == method]
        if part:
            lines.append(_line(method + _promise(part), part, "target_advantage", columns))
    for name, part in (
        ("ε of Gaussian noise", [row for row in here if row["delta"]]),
        ("ε of Laplace noise", [row for row in here if row["method"] == "laplace"]),
        ("ε of the other pure ones", [row for row in here if not row["delta"] and row["method"] != "laplace"]),
    ):
        if part:
            lines.append(_fact(name, part, "epsilon", columns, key="target_advantage"))
    return _table(caption, [f"advantage {value:g}" for value in columns], lines, rows, command, folded)


def _promise(rows: Sequence[Row]) -> str:
    """What stands behind a method's name: its delta, or that it has none."""
    return f", δ = {power_of_ten(rows[0]['delta'])}" if rows[0]["delta"] else ", pure"


def _constant(rows: Sequence[Row], columns: Sequence[float]) -> Line:
    text = _text([row for row in rows if row["setting"] == "clean" and row["method"] == "non-private"])
    return "non-private", [text] * len(columns), False


def _line(name: str, rows: Sequence[Row], key: str, columns: Sequence[float], *, competes: bool = True) -> Line:
    return name, [_text([row for row in rows if row[key] == at]) for at in columns], competes


def _text(rows: Sequence[Row]) -> str:
    """Mean and standard deviation over repeats; a dash where it is out of reach, a dot where it was not run."""
    if not rows:
        return _NOT_RUN
    values = [row["value"] for row in rows if row["value"] is not None]
    if not values:
        return _OUT_OF_REACH
    return f"{np.mean(values):.3f}" + (f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else "")


def _fact(name: str, rows: Sequence[Row], column: str, columns: Sequence[float], key: str = "epsilon") -> Line:
    """A fact of the promise rather than a measurement: the same in every repeat."""
    found = {row[key]: row[column] for row in rows}
    return name, [_NOT_RUN if at not in found else _short(found[at]) for at in columns], False


def _short(value: float | None) -> str:
    if value is None:
        return _NOT_RUN
    if value and abs(value) < 1e-3:
        return f"{value:.1e}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.4g}"


def _table(
    caption: str, header: list[str], lines: list[Line], rows: Sequence[Row], command: str, folded: bool
) -> ResultTable:
    side: Best = "max" if rows[0]["better"] == "higher" else "min"
    return ResultTable(
        caption=caption,
        header=["", *header],
        rows=[[name, *texts] for name, texts, _ in lines],
        command=command,
        best=[None, *([side] * len(header))],
        reference=[place for place, (_, _, competes) in enumerate(lines) if not competes],
        folded=folded,
    )
