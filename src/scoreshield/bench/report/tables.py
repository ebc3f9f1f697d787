"""Tables of results that tell both truths: what was claimed and measured, and what it is when a record is replaced."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from scoreshield._formatting import format_compact, format_measurement, typeset_power
from scoreshield._validation import validate
from scoreshield.bench.experiments.gram import EQUAL, NOTHING
from scoreshield.bench.report.results_page import Best, ResultTable
from scoreshield.report.tidy import summary

Row = dict[str, Any]

_OUT_OF_REACH, _NOT_RUN = "—", "·"
#: Without privacy: the most there is to gain, and what is had without any similarity.
_REFERENCES = ("non-private", NOTHING, EQUAL)


class Line(NamedTuple):
    """A row of the table; ``cells`` holds the rows behind each text of one that competes for the best value."""

    name: str
    texts: list[str]
    cells: list[list[Row]] | None = None


@validate()
def measured(rows: Iterable[Row]) -> dict[str, Any]:
    """Mean, standard deviation and count of the values there are; a gap is out of reach."""
    known = ({"value": math.nan if row["value"] is None else row["value"]} for row in rows)
    return summary(known, "value")


def mean(rows: Iterable[Row]) -> float:
    """Of the values there are; NaN where there are none."""
    return float(measured(rows)["mean"])


def spread_text(rows: Iterable[Row]) -> str:
    """Mean ± standard deviation over repeats, nothing where nothing was measured."""
    found = measured(rows)
    if not found["count"]:
        return ""
    return format_measurement(found["mean"]) + (f" ± {format_measurement(found['sd'])}" if found["count"] > 1 else "")


def without_similarities(rows: Iterable[Row]) -> Callable[[Row], float]:
    """What a value has to beat: the best had without any similarity in its repeat, or else what a guess gives."""
    found: dict[tuple[Any, ...], float] = {}
    for row in rows:
        if row["setting"] == "clean" and row["method"] in (NOTHING, EQUAL) and row["value"] is not None:
            key = row["dataset"], row["metric"], row["repeat"]
            pick = max if row["better"] == "higher" else min
            found[key] = pick(found.get(key, row["value"]), row["value"])
    return lambda row: found.get((row["dataset"], row["metric"], row["repeat"]), _guess(row))


def clears(rows: Iterable[Row], reference: Callable[[Row], float]) -> bool:
    """Whether values beat their reference, repeat by repeat, by more than one standard deviation of the difference."""
    gains = [
        (row["value"] - reference(row)) * (1 if row["better"] == "higher" else -1)
        for row in rows
        if row["value"] is not None
    ]
    if not all(map(math.isfinite, gains)):
        return True  # there is nothing to beat
    found = measured({"value": gain} for gain in gains)
    return bool(found["count"] > 1 and found["mean"] > found["sd"])


def _guess(row: Row) -> float:
    """The value of an answer that does not look at the records."""
    name, _, at = str(row["metric"]).partition("@")
    if name in ("accuracy", "auc", "eer"):
        return 0.5
    if name == "tar":
        return float(at)
    if name in ("recall", "overlap"):
        return min(1.0, float(at.split(",")[0]) / float(row["n"]))
    return -math.inf if row["better"] == "higher" else math.inf


def score_table(
    rows: Sequence[Row],
    methods: Sequence[str],
    *,
    caption: str,
    command: str,
    ceiling: tuple[str, Callable[[float], float]] | None = None,
    folded: bool = False,
) -> list[ResultTable]:
    """One metric of a score experiment against epsilon: the paper as published with its true epsilon, then ours."""
    ours = [row for row in rows if row["setting"] == "contract"]
    paper = [row for row in rows if row["setting"] == "paper"]
    columns = sorted({row["epsilon"] for row in (*ours, *paper)})
    lines = _constants(rows, columns)
    if paper:
        lines += [
            _line("the paper's Gaussian, as published", paper, "epsilon", columns, competes=False),
            _fact("its true ε when one record is replaced", paper, "true_epsilon", columns),
            _fact("its true δ at the claimed ε", paper, "true_delta", columns),
        ]
    for method in methods:
        part = [row for row in ours if row["method"] == method]
        if part:
            lines.append(_line(method + _promise(part), part, "epsilon", columns))
    lines += _facts("attack advantage of", ours, methods, "attack_advantage", columns)
    if ceiling is not None:
        lines.append(Line(ceiling[0], [f"{ceiling[1](epsilon):.3f}" for epsilon in columns]))
    return _table(caption, [f"ε = {epsilon:g}" for epsilon in columns], lines, rows, command, folded)


def gram_table(
    rows: Sequence[Row], methods: Sequence[str], *, caption: str, command: str, folded: bool = False
) -> list[ResultTable]:
    """One metric of a matrix experiment: as published, ours at the same radius, ours for one whole record."""
    private = [row for row in rows if row["setting"] in ("paper", "contract")]
    radius = max((row["radius"] for row in private if row["radius"] is not None), default=math.nan)
    columns = sorted({row["epsilon"] for row in private})
    lines = _constants(rows, columns)
    for setting, at, title in (
        ("paper", radius, f"as published, radius {radius:g}"),
        ("contract", radius, f"radius {radius:g}"),
        ("contract", None, "one record"),
    ):
        here = [row for row in private if row["setting"] == setting and row["radius"] == at]
        for method in dict.fromkeys(row["method"] for row in here if row["method"] in methods):
            part = [row for row in here if row["method"] == method]
            name = f"{title}: {method.replace(' (paper)', '')}{_promise(part)}"
            lines.append(_line(name, part, "epsilon", columns, competes=at is None))
        if here and at is not None:
            lines.append(_fact(f"{title}: true ε when one record is replaced", here, "true_epsilon", columns))
    return _table(caption, [f"ε = {epsilon:g}" for epsilon in columns], lines, rows, command, folded)


def attack_table(
    rows: Sequence[Row], methods: Sequence[str], *, caption: str, command: str, folded: bool = True
) -> list[ResultTable]:
    """One metric at equal attack advantage, with the epsilon that each mechanism has there."""
    here = [row for row in rows if row["setting"] == "advantage"]
    columns = sorted({row["target_advantage"] for row in here})
    lines = _constants(rows, columns)
    for method in methods:
        part = [row for row in here if row["method"] == method]
        if part:
            lines.append(_line(method + _promise(part), part, "target_advantage", columns))
    lines += _facts("ε of", here, methods, "epsilon", columns, key="target_advantage")
    return _table(caption, [f"advantage {value:g}" for value in columns], lines, rows, command, folded)


def _promise(rows: Sequence[Row]) -> str:
    """What stands behind a method's name: its delta, or that it has none."""
    return f", δ = {typeset_power(rows[0]['delta'])}" if rows[0]["delta"] else ", pure"


def _constants(rows: Sequence[Row], columns: Sequence[float]) -> list[Line]:
    """What there is without privacy: the same in every column."""
    found = []
    for method in _REFERENCES:
        part = [row for row in rows if row["setting"] == "clean" and row["method"] == method]
        found += [Line(method, [_text(part)] * len(columns))] if part else []
    return found


def _line(name: str, rows: Sequence[Row], key: str, columns: Sequence[float], *, competes: bool = True) -> Line:
    cells = [[row for row in rows if row[key] == at] for at in columns]
    return Line(name, [_text(cell) for cell in cells], cells if competes else None)


def _text(rows: Sequence[Row]) -> str:
    """Mean and standard deviation; a dash where it is out of reach, a dot where it was not run."""
    return (spread_text(rows) or _OUT_OF_REACH) if rows else _NOT_RUN


def _fact(name: str, rows: Sequence[Row], column: str, columns: Sequence[float], key: str = "epsilon") -> Line:
    """A fact of the promise rather than a measurement; where samples differ in size, the worst of them."""
    found = [[row[column] for row in rows if row[key] == at and row[column] is not None] for at in columns]
    return Line(name, [format_compact(max(values)) if values else _NOT_RUN for values in found])


def _facts(
    name: str, rows: Sequence[Row], methods: Sequence[str], column: str, columns: Sequence[float], key: str = "epsilon"
) -> list[Line]:
    """One line for all methods of which the fact is the same."""
    same: dict[tuple[str, ...], list[str]] = {}
    for method in methods:
        part = [row for row in rows if row["method"] == method]
        texts = tuple(_fact(method, part, column, columns, key).texts)
        if any(text != _NOT_RUN for text in texts):
            same.setdefault(texts, []).append(method)
    return [Line(f"{name} {' / '.join(named)}", list(texts)) for texts, named in same.items()]


def _table(
    caption: str, header: list[str], lines: list[Line], rows: Sequence[Row], command: str, folded: bool
) -> list[ResultTable]:
    """One table, or none where nothing private was run."""
    if not header:
        return []
    side: Best = "max" if rows[0]["better"] == "higher" else "min"
    reference = without_similarities(rows)
    unclear = [
        (place, column)
        for place, line in enumerate(lines)
        for column, cell in enumerate(line.cells or (), 1)
        if not clears(cell, reference)
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
