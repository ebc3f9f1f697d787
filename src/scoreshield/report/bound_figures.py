"""The paper's figures of its error bounds. The conditional bound is drawn differently from the valid ones."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import _validation, risk
from scoreshield._formatting import typeset_power
from scoreshield._validation import validate
from scoreshield.privacy import calibration
from scoreshield.report.plots import (
    AMBER,
    BLUE,
    FAINT,
    INK,
    NOT_PRIVATE,
    RED,
    VIOLET,
    add_captions,
    calibrate_rule,
    make_legend_key,
    make_panels,
)
from scoreshield.risk.closed_forms import Regime

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

_NAIVE, _LOCAL = "naive (noise alone)", "local, all scores at ±1 (a = n)"
_LEAST, _LEAST_ANALYTIC = "least valid bound", "the same, analytic noise"
#: How each bound is drawn, and what risk.bounds calls it if it is a plain one of both regimes or of Gram matrices.
_BOUNDS: dict[str, tuple[dict[str, Any], str, str]] = {
    _NAIVE: ({"color": NOT_PRIVATE, "linewidth": 1.6}, "naive", "both"),
    _LOCAL: ({"color": VIOLET, "linewidth": 1.6, "linestyle": (0, (1, 1))}, "local", ""),
    "global, 4σ GC(C), the paper's": ({"color": BLUE, "linewidth": 1.4, "linestyle": ":"}, "global (paper)", "both"),
    "global, σ GC(C)": ({"color": BLUE, "linewidth": 1.6}, "global", "both"),
    "size of the feasible set": ({"color": AMBER, "linewidth": 1.6}, "size", "both"),
    "rank, unconditional": ({"color": VIOLET, "linewidth": 1.6}, "rank", "gram"),
    "rank-aware: conditional, may fail": (
        {"color": RED, "linewidth": 1.6, "linestyle": "--"},
        "rank-aware (loose)",
        "gram",
    ),
    _LEAST: ({"color": INK, "linewidth": 2.2, "linestyle": "-."}, "", ""),
    _LEAST_ANALYTIC: ({"color": INK, "linewidth": 1.2, "linestyle": ":"}, "", ""),
}


@validate()
def draw_mse_bounds(
    *, divided: bool = False, epsilon: float = 5.0, delta: float = 1e-6, radius: float = 1.0, rank: int = 8
) -> Figure:
    """Draw bounds on the squared error by n: log-log, semi-log, linear and at small n; or all of it divided by c.

    Args:
        divided: whether bounds are divided by c = 2 ln(2/delta) / epsilon^2.
        epsilon: with delta, a pair at which the paper's rule sigma^2 = c Delta^2 is private.
        delta: see epsilon.
        radius: the Gram radius of the third column.
        rank: of the clean Gram matrix.
    """
    if not calibrate_rule("conservative", epsilon, delta, 1.0).is_private:
        _validation.reject("epsilon", "one at which the conservative rule is private", epsilon)
    c, analytic = 2 * math.log(2 / delta) / epsilon**2, calibration.calibrate(epsilon, delta, 1.0)
    views = (
        ("log-log", "log", "log", np.geomspace(rank, 1e5, 60)),
        ("semi-log", "linear", "log", np.linspace(rank, 1000, 125)),
        ("linear", "linear", "linear", np.linspace(rank, 1000, 125)),
        ("small n", "linear", "log", np.arange(rank, 65.0)),
    )
    cases: tuple[tuple[str, Regime, Callable[[Float], Float]], ...] = (
        ("Regime (i), scores: Δ = 2", "scores", lambda n: np.full(len(n), 2.0)),
        ("Regime (ii), Gram, one record: Δ = 2√(2(n−1))", "gram", lambda n: 2 * np.sqrt(2 * (n - 1))),
        (f"Regime (ii), Gram, radius: Δ = {radius:g}", "gram", lambda n: np.full(len(n), radius)),
    )
    figure, panels = make_panels(len(views), len(cases), (4.6, 2.7))
    for row, (view, xscale, yscale, sizes) in zip(panels, views, strict=True):
        n = np.unique(np.rint(sizes))
        for axes, (name, regime, sensitivity) in zip(row, cases, strict=True):
            curves = _compute_bounds(regime, n, math.sqrt(c) * sensitivity(n), analytic * sensitivity(n), rank)
            _draw_bound_panel(axes, n, {key: values / (c if divided else 1.0) for key, values in curves.items()})
            axes.set(xscale=xscale, yscale=yscale, xlim=(n[0], n[-1]))
            axes.set_title(name, fontsize=9.5)
            if yscale == "linear":
                axes.set_ylim(0, 1.08 * float(curves[_NAIVE][-1]) / (c if divided else 1.0))
        row[0].set_ylabel(f"{view}\nbound on the squared error" + " / c" * divided)
    for axes in panels[-1]:
        axes.set_xlabel("records n")
    add_captions(
        figure,
        "Bounds on the squared error of a projected release" + ", divided by c = 2 ln(2/δ)/ε²" * divided,
        f"σ² = c Δ² with the paper's c = 2 ln(2/δ)/ε² = {c:.3f} at ε = {epsilon:g}, δ = {typeset_power(delta)}, where "
        f"that rule is private; Gram matrices of rank {rank}; a radius protects less than a record. Grey area: from "
        "the naive risk to the least valid bound, over all that risk.bounds knows. Dashed: conditional on "
        "Gram-smoothness, which fails at every rank below n, so it never enters the minimum (in the paper it does). "
        "The size bound, the global one without its factor 4 and the unconditional rank bound are not in the paper, "
        "which has both Gram panels in one."
        + " Division by c leaves c^(−1/2) in the global bounds and 1/c in the size bound."
        * divided,
        [make_legend_key(**style, label=label) for label, (style, _, _) in _BOUNDS.items()],
        columns=3,
    )
    return figure


def _compute_bounds(regime: Regime, n: Float, sigma: Float, analytic: Float, rank: int) -> dict[str, Float]:
    """Compute each bound of the legend over n, with one scale per n. The last bound uses the analytic scales."""

    def over_n(scales: Float, pick: Callable[[risk.Bounds], risk.Bound], full: bool = False) -> Float:
        options: dict[str, Any] = {"rank": rank, "diagonal_noise": True} if regime == "gram" else {}
        sizes = [(int(size), float(scale)) for size, scale in zip(n, scales, strict=True)]
        found = (risk.bounds(regime, *pair, active=pair[0] if full else 0, **options) for pair in sizes)
        return np.array([pick(bounds).value for bounds in found])

    curves = {
        label: over_n(sigma, lambda bounds, name=name: bounds[name])  # type: ignore[misc]
        for label, (_, name, where) in _BOUNDS.items()
        if where in ("both", regime)
    }
    if regime == "scores":
        curves[_LOCAL] = over_n(sigma, lambda bounds: bounds["local"], full=True)
    curves[_LEAST] = over_n(sigma, lambda bounds: bounds.best)
    curves[_LEAST_ANALYTIC] = over_n(analytic, lambda bounds: bounds.best)
    return curves


def _draw_bound_panel(axes: Axes, n: Float, curves: dict[str, Float]) -> None:
    axes.fill_between(n, curves[_LEAST], curves[_NAIVE], color=FAINT)
    for label, values in curves.items():
        axes.plot(n, values, **_BOUNDS[label][0], label=label)
