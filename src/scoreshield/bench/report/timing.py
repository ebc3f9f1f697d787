"""The sections of the results page on what was timed: the projections, and the noise itself."""

from __future__ import annotations

import math

from scoreshield._formatting import format_timing, typeset_power
from scoreshield.bench.experiments import table
from scoreshield.bench.report import experiments as pictures
from scoreshield.bench.report.results_page import Picture, ResultTable, Section
from scoreshield.bench.report.runs import Run, sentence
from scoreshield.bench.report.tables import mean

_MEASURES = ("seconds", "eigendecompositions", "excess distance", "converged")


def runtime(run: Run) -> Section:
    shown: list[Picture] = []
    for radius in dict.fromkeys(row["radius"] for row in run.rows):
        stem = f"runtime-{'record' if radius is None else pictures.slug(f'{radius:g}')}"
        shown += run.picture(stem, f"Seconds of each projection by size, {_who(radius)}", _seconds(run, radius))
    lines = []
    keys = dict.fromkeys((row["n"], row["radius"], row["epsilon"], row["method"]) for row in run.where())
    for n, at, epsilon, method in sorted(keys, key=lambda key: (key[0], str(key[1]), key[2], str(key[3]))):
        here = run.where(n=n, radius=at, epsilon=epsilon, method=method)
        texts = [format_timing(mean(table.where(here, metric=name))) for name in _MEASURES]
        lines.append([f"{n:,}", _who(at), f"{epsilon:g}", str(method), *texts])
    return Section(
        "Time of the projections",
        "Each projection gets the same noisy matrix. Newton is exact and certified by its duality gap. The paper's "
        "averaged projections (aap) end nearby. Dykstra is exact and slow. The SDP is CVXPY with Clarabel, with a "
        f"time limit. {run.sizes()}",
        pictures=shown,
        tables=[
            ResultTable(
                caption="Seconds, eigendecompositions, and how much farther than the nearest valid matrix, "
                f"{run.promise}",
                header=["n", "noise for", "ε", "method", *_MEASURES],
                rows=lines,
                command=run.command,
                folded=True,
            )
        ],
        notes=["Converged is the share of repeats. If it is 0, the method stopped at its limit of steps or time."],
    )  # fmt: skip


def _who(radius: float | None) -> str:
    return "one record" if radius is None else f"radius {radius:g}"


def _seconds(run: Run, radius: float | None) -> str:
    """The largest matrix at one budget: how long the exact projection takes, how long the others, and if they end."""
    here = run.where(radius=radius, epsilon=run.nearest(10.0))
    timed = [row for row in table.where(here, metric="seconds") if row["value"] is not None]
    if not timed:
        return ""
    largest = max(row["n"] for row in timed)
    seconds = {
        method: mean(table.where(timed, method=method, n=largest))
        for method in dict.fromkeys(str(row["method"]) for row in timed if row["n"] == largest)
    }
    pieces, newton = [], seconds.get("newton")
    for method, value in seconds.items():
        times = f", {value / newton:.3g} times as long as newton" if newton and method != "newton" else ""
        done = mean(table.where(here, metric="converged", method=method, n=largest))
        end = "" if math.isnan(done) else "; converged" if done == 1 else "; stopped before it converged"
        extra = (times + end).lstrip(",; ")
        pieces.append((f"{method} {{}} s" + (f" ({extra})" if extra else ""), f"{value:.2g}"))
    delta = "" if run.delta is None else f", δ = {typeset_power(run.delta)}"
    words = sentence(f"Noise for {_who(radius)} at ε = {run.nearest(10.0):g}{delta}, n = {largest:,}: ", pieces)
    budgets = {(row["epsilon"], row["delta"]) for row in run.rows if row["radius"] == radius}
    return words + (" The bars are means over all budgets of the run." if len(budgets) > 1 else "")


def noise(run: Run) -> Section:
    epsilons = sorted({row["epsilon"] for row in run.where()})
    lines = []
    for method in dict.fromkeys(row["method"] for row in run.where()):
        for metric in ("standard deviation", "low-bit leak", "seconds per million"):
            values = [run.value(method=method, metric=metric, epsilon=epsilon) for epsilon in epsilons]
            lines.append([str(method), metric, *map(format_timing, values)])

    def at(method: str, metric: str, epsilon: float) -> str:
        value = run.value(method=method, metric=metric, epsilon=epsilon)
        return "" if math.isnan(value) else f"{value:.3g}"

    ten, high = run.nearest(10.0), epsilons[-1]
    leaks = sentence(
        f"At ε = {high:g} it is ",
        [
            ("{} for NumPy's floating-point Gaussian", at("float gaussian", "low-bit leak", high)),
            ("{} for Gaussian noise on a public grid", at("gaussian", "low-bit leak", high)),
        ],
    )
    return Section(
        "The noise itself",
        "The size of the noise on one score (sensitivity 2), whether its low bits reveal the score, and the time "
        "for a million released scores.",
        pictures=run.picture(
            "noise-std",
            "Standard deviation of Gaussian, Laplace and staircase noise against epsilon",
            sentence(
                f"Standard deviation at ε = {ten:g}, {run.promise}: ",
                [(f"{law} {{}}", at(law, "standard deviation", ten)) for law in ("gaussian", "laplace", "staircase")],
            ),
        ),
        tables=[
            ResultTable(
                caption=f"Standard deviation, low-bit leak, seconds per million, {run.promise}",
                header=["law", "", *(f"ε = {epsilon:g}" for epsilon in epsilons)],
                rows=lines,
                command=run.command,
                folded=True,
            )
        ],
        notes=[
            "Low-bit leak: how much more often “it is a multiple of 2⁻⁵³” holds for a score of 1 than for one of 0, an "
            f"attacker's advantage. {leaks}".strip()
        ],
    )  # fmt: skip
