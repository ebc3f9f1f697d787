"""New drawings of the figures of the paper's face-recognition appendix and error bounds, with its mistakes marked.

Every curve is computed, none is simulated. Clean scores are synthetic (`scoreshield.decisions.models`) or other public
scores. Rates after noise come from `scoreshield.decisions`, bounds from `scoreshield.risk`. Three things differ from
the paper in all figures.

* A calibration rule that does not give the privacy it names is drawn grey, dotted or hollow, with its true epsilon.
* The sensitivity 1.5 holds only for scores clamped to the public range [-0.5, 1] before noise, so they are clamped.
* A target that clipped scores cannot reach is shown where noisy, unclipped scores reach it, which are equally private.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from scoreshield import decisions
from scoreshield._formatting import typeset_power
from scoreshield._validation import validate, whole_from
from scoreshield.decisions.models import FAMILIES, ScoreSet, draw_score_set
from scoreshield.errors import FileError
from scoreshield.geometry.arrays import Progress
from scoreshield.privacy import calibration
from scoreshield.report import plots
from scoreshield.report.bound_figures import draw_mse_bounds
from scoreshield.report.plots import (
    AMBER,
    BLUE,
    FAINT,
    GREY,
    INK,
    NOT_PRIVATE,
    RED,
    SHADE,
    VIOLET,
    RuleNoise,
    add_captions,
    calibrate_rule,
    make_legend_key,
    make_panels,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Float = NDArray[np.float64]

EPSILONS = (0.5, 1, 2, 3, 5, 8, 10, 15, 20, 30, 40)
#: The whole range [-1, 1], and the public range [-0.5, 1] that clamping enforces.
SENSITIVITIES = (2.0, 1.5)

_RULE_COLOUR = {"analytic": RED, "conservative": AMBER, "classical": VIOLET}
_CLAMPED = "Δ = 1.5 holds because scores are clamped to the public range [−0.5, 1] before noise (the paper assumes it)."


@validate(scores_per_side=whole_from(1000))
def make_figures(
    out: Path, *, scores_per_side: int = 200_000, seed: int = 0, progress: Progress | None = None
) -> list[Path]:
    """Draw every figure into a folder, each file written whole or not at all.

    Args:
        out: the folder, made if it is not there.
        scores_per_side: of each synthetic set; at least 1,000, because a false-match rate of 1e-3 is shown.
        seed: of the synthetic scores.
        progress: called with the number of figures that are done, and how many there are.
    """
    sets = [draw_score_set(name, scores_per_side, seed) for name in FAMILIES]
    figures: dict[str, Callable[[], Figure]] = {
        "score-histograms.png": lambda: draw_score_histograms(sets),
        "fmr-overlays.png": lambda: draw_fmr_overlays(sets),
        "fmr-thresholds.png": lambda: draw_fmr_thresholds(sets),
        "fmr-thresholds-clamped.png": lambda: draw_fmr_thresholds(sets, sensitivity=1.5),
        "shift-against-scale.png": lambda: draw_shift_by_scale(sets),
        "shift-against-epsilon.png": lambda: draw_shift_by_epsilon(sets),
        "mse-bounds.png": lambda: draw_mse_bounds(),
        "mse-bounds-divided.png": lambda: draw_mse_bounds(divided=True),
    }
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise FileError(f"Cannot make the folder {out}: {error.strerror}.") from None
    for done, (name, draw) in enumerate(figures.items(), start=1):
        plots.save_picture(draw(), out / name)
        if progress is not None:
            progress(done, len(figures))
    return [out / name for name in figures]


def draw_score_histograms(sets: Sequence[ScoreSet]) -> Figure:
    """Draw impostor and genuine scores of each set, with the share of proposals that the cut to (-1, 1) threw away."""
    figure, panels = make_panels(math.ceil(len(sets) / 2), 2, (5.2, 2.9))
    bins, lower = np.linspace(-1, 1, 101), 1 - min(SENSITIVITIES)
    for axes, scores in zip(panels.flat, sets, strict=False):
        for name, values, colour in (("impostor", scores.impostor, BLUE), ("genuine", scores.genuine, RED)):
            axes.hist(values, bins, density=True, color=colour, alpha=0.35)
            axes.hist(values, bins, density=True, color=colour, histtype="step", linewidth=1.2, label=name)
        axes.axvline(lower, color=NOT_PRIVATE, linewidth=1, linestyle=":")
        below = f"{np.mean(scores.impostor < lower):.2%}\nof impostors\nbelow −0.5"
        axes.text(lower - 0.03, 0.95, below, transform=axes.get_xaxis_transform(), ha="right", va="top", fontsize=8.5)
        rejected = f"rejected: impostor {scores.rejected_impostor:.2%}, genuine {scores.rejected_genuine:.2%}"
        axes.set_title(f"{_name_set(scores)} ({rejected})", fontsize=10)
        axes.set(xlim=(-1, 1), xlabel="clean score", ylabel="density")
    for axes in panels.flat[len(sets) :]:
        axes.remove()
    add_captions(
        figure,
        "Clean scores of impostor and genuine pairs",
        f"{max(len(scores.impostor) for scores in sets):,} scores a side, cut to (−1, 1) by rejection; the rate is 1 − "
        "n / proposals. The dotted line is the lower end of the public range [−0.5, 1]. As in the paper, but the Beta "
        "is cut by rejection too, not nudged, and the genuine mixture (0.9 N(0.65, 0.15) + 0.1 N(0.30, 0.20)) and the "
        "shift of the Student-t (0.60) are our choice.",
        [make_legend_key(color=BLUE, label="impostor"), make_legend_key(color=RED, label="genuine")],
    )
    return figure


def draw_fmr_overlays(
    sets: Sequence[ScoreSet],
    *,
    epsilons: Sequence[float] = (5, 10, 15),
    delta: float = 1e-6,
    target: float = 1e-2,
) -> Figure:
    """Draw the false-match rate by threshold: clean, and after the noise of two rules at two sensitivities."""
    figure, panels = make_panels(len(sets), len(epsilons), (4.1, 2.35), sharex="col", sharey=True)
    for row, scores in zip(panels, sets, strict=True):
        samples = _clamp_samples(scores)
        for axes, epsilon in zip(row, epsilons, strict=True):
            t = np.linspace(-1, 1 + 2.2 * calibration.calibrate(epsilon, delta, max(SENSITIVITIES)), 401)
            _draw_frame(axes, t, target)
            axes.plot(t, decisions.false_match_rate(samples[2.0], t), color=BLUE, linewidth=1.6, label="clean")
            for method in ("conservative", "analytic"):
                for sensitivity, sample in samples.items():
                    noise = calibrate_rule(method, epsilon, delta, sensitivity)
                    rates = decisions.false_match_rate(sample, t, noise.scale)
                    axes.plot(t, rates, **_choose_curve_style(noise, sensitivity))
        row[0].set_ylabel(f"{_name_set(scores)}\nfalse-match rate")
    for column, epsilon in zip(panels.T, epsilons, strict=True):
        rule = calibrate_rule("conservative", epsilon, delta, max(SENSITIVITIES))
        broken = "" if rule.is_private else f"\nconservative rule not private: true ε = {rule.true_epsilon:.4g}"
        column[0].set_title(f"ε = {epsilon:g}{broken}", fontsize=10)
        column[-1].set_xlabel("threshold")
    add_captions(
        figure,
        "False-match rate against threshold, before and after noise",
        f"δ = {typeset_power(delta)}; dotted line: target α = {typeset_power(target)}; strict rule (score > t). "
        "Shaded: "
        "thresholds from 1 on, where clipped scores accept nothing and the curves are those of the noisy, unclipped "
        f"scores; each column has its own range. {_CLAMPED} The paper draws the conservative rule as private at every "
        "ε; where "
        "the title says that it is not, it takes less noise than the exact (analytic) calibration, and its lower "
        "curves "
        "are no gain.",
        [
            make_legend_key(color=BLUE, label="clean"),
            *(
                make_legend_key(color=_RULE_COLOUR[rule], linestyle=style, label=f"{rule}, Δ = {sensitivity:g}{note}")
                for rule in ("analytic", "conservative")
                for sensitivity, style, note in ((2.0, "-", ""), (1.5, "--", " (clamped)"))
            ),
            make_legend_key(
                color=NOT_PRIVATE, linestyle=":", label="conservative where not private (Δ = 1.5 loosely dotted)"
            ),
        ],
        columns=3,
    )
    return figure


def draw_fmr_thresholds(
    sets: Sequence[ScoreSet],
    *,
    sensitivity: float = 2.0,
    epsilons: Sequence[float] = (5, 10, 20, 30),
    delta: float = 1e-5,
    target: float = 1e-2,
) -> Figure:
    """Draw the clean and private false-match rate, with both thresholds, by the analytic calibration."""
    figure, panels = make_panels(len(sets), len(epsilons), (3.5, 2.6), sharex="col", sharey=True)
    samples = [_clamp_sample(scores, sensitivity) for scores in sets]
    for column, epsilon in zip(panels.T, epsilons, strict=True):
        scale = calibration.calibrate(epsilon, delta, sensitivity)
        found = [decisions.recalibrate(sample, target, scale) for sample in samples]
        t = np.linspace(-1, max(1.25, *(each.clean_threshold + 1.2 * each.unclipped_shift for each in found)), 601)
        for axes, sample, each in zip(column, samples, found, strict=True):
            _draw_frame(axes, t, target)
            _draw_threshold_panel(axes, t, sample, scale, each)
            reached = "" if each.feasible else f"\nout of reach on clipped scores (L = {each.limit:#.2g})"
            axes.set_title(f"ε = {epsilon:g}, noise sd {scale:.3f}{reached}", fontsize=9)
        column[-1].set_xlabel("threshold")
    for axes, scores in zip(panels[:, 0], sets, strict=True):
        axes.set_ylabel(f"{_name_set(scores)}\nfalse-match rate")
    clamped = sensitivity < max(SENSITIVITIES)
    title = f"Thresholds before and after noise, sensitivity Δ = {sensitivity:g}" + " (scores clamped)" * clamped
    add_captions(
        figure,
        title,
        f"Analytic calibration, δ = {typeset_power(delta)}, target α = {typeset_power(target)} (grey band: ±20 %), "
        "strict rule, as in the paper; numbers are shifts. Where clipped scores cannot reach α the title says so (L is "
        "the rate that thresholds just below 1 still have), and the line is the threshold of the noisy, unclipped "
        "scores, which "
        "the paper does not "
        "show. " + (_CLAMPED if clamped else "Shaded: thresholds from 1 on. Each column has its own range."),
        [
            make_legend_key(color=BLUE, label="clean rate"),
            make_legend_key(color=RED, label="private rate"),
            make_legend_key(color=RED, linestyle=":", label="the same, unclipped scores only"),
            make_legend_key(color=BLUE, linestyle="--", label="clean threshold"),
            make_legend_key(color=RED, linestyle="-.", label="recalibrated threshold"),
            make_legend_key(color=NOT_PRIVATE, linestyle="-.", label="recalibrated, unclipped scores only"),
        ],
        columns=6,
    )
    return figure


def _draw_threshold_panel(
    axes: Axes, t: Float, sample: decisions.Sample, scale: float, found: decisions.Recalibration
) -> None:
    """Draw both curves, both thresholds and the arrow between them."""
    moved, clean, height = found.unclipped_threshold, found.clean_threshold, 0.25 * found.target
    rates = decisions.false_match_rate(sample, t, scale)
    inside, colour = t < 1, RED if found.feasible else NOT_PRIVATE
    axes.axhspan(0.8 * found.target, 1.2 * found.target, color=GREY, alpha=0.5, linewidth=0)
    axes.plot(t, decisions.false_match_rate(sample, t), color=BLUE, linewidth=1.6, label="clean rate")
    axes.plot(t[inside], rates[inside], color=RED, linewidth=1.6, label="private rate")
    axes.plot(t[~inside], rates[~inside], color=RED, linewidth=1.3, linestyle=":", label="unclipped private rate")
    axes.axvline(clean, color=BLUE, linewidth=1.1, linestyle="--", label="clean threshold")
    axes.axvline(moved, color=colour, linewidth=1.3, linestyle="-.", label="recalibrated threshold")
    arrow = {"arrowstyle": "->", "color": colour, "shrinkA": 0, "shrinkB": 0}
    axes.annotate("", (moved, height), (clean, height), arrowprops=arrow)
    beside: dict[str, Any] = {"textcoords": "offset points", "ha": "right", "va": "center", "fontsize": 9}
    axes.annotate(f"{moved - clean:+.3f}", (clean, height), (-4, 0), **beside)
    axes.set_ylim(0.05 * found.target, 1.5)


def draw_shift_by_scale(
    sets: Sequence[ScoreSet],
    *,
    targets: Sequence[float] = (1e-2, 1e-3),
    delta: float = 1e-6,
    sensitivity: float = 2.0,
    scales: Float | None = None,
) -> Figure:
    """Draw the shift of the threshold by the noise scale; what clipped scores cannot reach is shaded."""
    grid = np.linspace(0.005, 0.8, 160) if scales is None else np.asarray(scales, dtype=np.float64)
    figure, panels = make_panels(len(targets), len(sets), (3.6, 3.3), sharex=True, sharey="row")
    samples = [_clamp_sample(scores, sensitivity) for scores in sets]
    for row, target in zip(panels, targets, strict=True):
        tops = [_draw_shift_panel(axes, sample, target, grid) for axes, sample in zip(row, samples, strict=True)]
        row[0].set(xlim=(0, grid[-1]), ylim=(0, 1.12 * max(tops)))
        row[0].set_ylabel(f"α = {typeset_power(target)}\nshift of the threshold")
    for column, scores in zip(panels.T, sets, strict=True):
        for axes in column:
            _add_epsilon_axis(axes, float(grid[-1]), delta, sensitivity)
        column[0].set_title(_name_set(scores), fontsize=11)
        column[-1].set_xlabel("noise standard deviation σ")
    add_captions(
        figure,
        "How far the threshold must move to keep the false-match rate",
        f"Strict rule. Upper axis: the ε of each σ by the analytic calibration, δ = {typeset_power(delta)}, Δ = "
        f"{sensitivity:g}. Shaded: σ above its critical value, where no threshold below 1 reaches α on clipped scores; "
        "the thin line goes on for the noisy, unclipped scores, which reach every α (not in the paper). Small-noise "
        "law: −(σ²/2) f′/f at the clean threshold, with the density estimated from the scores.",
        [
            make_legend_key(color=RED, linewidth=2.2, label="shift, exact"),
            make_legend_key(color=RED, linewidth=1, label="the same, unclipped scores only"),
            make_legend_key(color=BLUE, linestyle="--", label="small-noise law"),
            make_legend_key(color=SHADE, linewidth=8, label="out of reach on clipped scores"),
        ],
    )
    return figure


def _draw_shift_panel(axes: Axes, sample: decisions.Sample, target: float, grid: Float) -> float:
    """Draw the exact shift up to the critical scale and beyond it, and its approximation for small noise.

    For large noise the approximation is far above the exact shift, so it does not set the range of the panel.

    Returns:
        The largest exact shift.
    """
    critical = decisions.critical_scale(sample, target)
    found = [decisions.recalibrate(sample, target, float(scale)) for scale in grid]
    unclipped = np.array([each.unclipped_shift for each in found])
    if critical < grid[-1]:
        axes.axvspan(critical, float(grid[-1]), color=SHADE, linewidth=0, label="infeasible")
    axes.plot(grid, unclipped, color=RED, linewidth=1, label="unclipped shift")
    axes.plot(grid, [each.shift for each in found], color=RED, linewidth=2.2, label="shift")
    small = [each.small_noise_shift for each in found]
    axes.plot(grid, small, color=BLUE, linewidth=1.3, linestyle="--", label="small-noise law")
    facts = f"clean threshold {found[0].clean_threshold:.3f}\ncritical σ {critical:.3f}"
    # At the lower right, where no curve of a shift passes.
    axes.text(0.97, 0.04, facts, transform=axes.transAxes, ha="right", va="bottom", fontsize=8.5, color=INK)
    return float(unclipped.max())


def _add_epsilon_axis(axes: Axes, largest: float, delta: float, sensitivity: float) -> None:
    """Add an upper axis of epsilons, each above its analytic scale."""
    marks = {epsilon: calibration.calibrate(epsilon, delta, sensitivity) for epsilon in (15, 20, 30, 50, 100, 400)}
    shown = {f"{epsilon:g}": scale for epsilon, scale in marks.items() if scale <= largest}
    top = axes.secondary_xaxis("top")
    top.set_xticks(list(shown.values()), list(shown), fontsize=8)
    top.set_xlabel("ε", fontsize=9, labelpad=2)


def draw_shift_by_epsilon(
    sets: Sequence[ScoreSet],
    *,
    epsilons: Sequence[float] = EPSILONS,
    delta: float = 1e-6,
    target: float = 1e-2,
) -> Figure:
    """Draw the shift of the threshold by epsilon, for each rule and sensitivity; not-private points are hollow."""
    figure, panels = make_panels(len(SENSITIVITIES), len(sets), (3.6, 3.2), sharex=True, sharey=True)
    for column, scores in zip(panels.T, sets, strict=True):
        for axes, (sensitivity, sample) in zip(column, _clamp_samples(scores).items(), strict=True):
            axes.set(xscale="log", yscale="log")
            for method in ("conservative", "classical", "analytic"):
                rules = [calibrate_rule(method, epsilon, delta, sensitivity) for epsilon in epsilons]
                _draw_sweep(axes, rules, [decisions.recalibrate(sample, target, rule.scale) for rule in rules])
            axes.set_xticks([0.5, 1, 2, 5, 10, 20, 40], ["0.5", "1", "2", "5", "10", "20", "40"])
            axes.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
            axes.minorticks_off()
            axes.grid(color=FAINT)
        column[0].set_title(_name_set(scores), fontsize=11)
        column[-1].set_xlabel("privacy budget ε")
    for row, sensitivity in zip(panels, SENSITIVITIES, strict=True):
        note = "" if sensitivity == max(SENSITIVITIES) else " (clamped)"
        row[0].set_ylabel(f"Δ = {sensitivity:g}{note}\nshift of the threshold")
    dots = {"color": INK, "linestyle": "none"}
    hollow = {"color": NOT_PRIVATE, "linestyle": "none", "markerfacecolor": "white"}
    add_captions(
        figure,
        "How far the threshold must move, against the privacy budget",
        f"δ = {typeset_power(delta)}, α = {typeset_power(target)}, strict rule. Infeasible: no threshold below 1 "
        "reaches "
        f"α on clipped scores; the triangle is at the shift of the noisy, unclipped ones. {_CLAMPED} Hollow grey: "
        "there the rule takes less noise than (ε, δ) needs; the true ε of the conservative one is written beside. The "
        "paper "
        "draws these points as private. Both axes are logarithmic, as the shift spans three decades.",
        [
            *(
                make_legend_key(color=_RULE_COLOUR[rule], label=rule)
                for rule in ("analytic", "conservative", "classical")
            ),
            make_legend_key(**dots, marker="o", label="feasible"),
            make_legend_key(**dots, marker="v", label="infeasible on clipped scores"),
            make_legend_key(**hollow, marker="o", label="rule not private there"),
        ],
        columns=6,
    )
    return figure


def _draw_sweep(axes: Axes, rules: Sequence[RuleNoise], found: Sequence[decisions.Recalibration]) -> None:
    """Draw one rule over epsilon: coloured where it is private, grey and hollow where it is not."""
    epsilon = np.array([rule.epsilon for rule in rules])
    private = np.array([rule.is_private for rule in rules])
    feasible = np.array([each.feasible for each in found])
    shift = np.array([each.unclipped_shift for each in found])  # the same as on clipped scores where that exists
    method = rules[0].method
    # The textbook rules lie nearly on one another, so the marks of the lower one are larger.
    size = 9.0 if method == "conservative" else 5.0
    if not private.all():
        axes.plot(epsilon[~private], shift[~private], color=NOT_PRIVATE, linewidth=0.8, linestyle=":", zorder=1)
    axes.plot(epsilon[private], shift[private], color=_RULE_COLOUR[method], linewidth=1.3, label=method)
    for reached, marker in ((True, "o"), (False, "v")):
        for kept, face in ((True, _RULE_COLOUR[method]), (False, "white")):
            chosen = (feasible == reached) & (private == kept)
            axes.plot(
                epsilon[chosen],
                shift[chosen],
                linestyle="none",
                marker=marker,
                markersize=size,
                color=_RULE_COLOUR[method] if kept else NOT_PRIVATE,
                markerfacecolor=face,
                zorder=2.0 if kept else 1.5,
                label=f"{method}, {'' if reached else 'in'}feasible" + ", not private" * (not kept),
            )
    if method == "conservative":
        for place in np.flatnonzero(~private)[::-2]:  # every second one, from the last
            text, where = f"true ε {rules[place].true_epsilon:.4g}", (float(epsilon[place]), float(shift[place]))
            axes.annotate(text, where, (-8, 0), textcoords="offset points", ha="right", va="top", fontsize=8)


def _choose_curve_style(noise: RuleNoise, sensitivity: float) -> dict[str, Any]:
    """Choose solid lines for the whole range, dashed for the clamped one, and grey dotted where it is not private."""
    clamped = sensitivity < max(SENSITIVITIES)
    style: dict[str, Any] = {"linewidth": 1.6, "label": f"{noise.method}, Δ = {sensitivity:g}"}
    if noise.is_private:
        return style | {"color": _RULE_COLOUR[noise.method], "linestyle": "--" if clamped else "-"}
    style["label"] += f" (not private: true ε = {noise.true_epsilon:.4g})"
    return style | {"color": NOT_PRIVATE, "linestyle": (0, (1, 5 if clamped else 2.5)), "zorder": 3}


def _draw_frame(axes: Axes, t: Float, target: float) -> None:
    """Draw the frame of a panel of rates over thresholds, with the end of clipped scores and the target."""
    axes.axvspan(1, float(t[-1]), color=FAINT, linewidth=0, zorder=0)
    axes.axhline(target, color=INK, linewidth=0.9, linestyle=":")
    axes.set(yscale="log", xlim=(-1, t[-1]), ylim=(0.1 * target, 1.4))


def _name_set(scores: ScoreSet) -> str:
    return FAMILIES[scores.name].title if scores.name in FAMILIES else scores.name


def _clamp_sample(scores: ScoreSet, sensitivity: float) -> decisions.Sample:
    """Clamp impostor scores to the public range [1 - sensitivity, 1], so that the sensitivity holds."""
    return decisions.Sample(np.clip(scores.impostor, 1 - sensitivity, 1.0))


def _clamp_samples(scores: ScoreSet) -> dict[float, decisions.Sample]:
    return {sensitivity: _clamp_sample(scores, sensitivity) for sensitivity in SENSITIVITIES}
