"""Figures draw what the functions they name compute, mark what is not private, and keep their texts apart."""

from __future__ import annotations

import math
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import scoreshield as ss
from scoreshield import decisions, risk
from scoreshield.decisions.models import FAMILIES, ScoreSet, draw_score_set
from scoreshield.privacy import calibration
from scoreshield.report import bound_figures, figures, plots

SCALES = np.linspace(0.02, 0.8, 14)


@pytest.fixture(scope="module")
def sets() -> list[ScoreSet]:
    return [draw_score_set(name, 4000, seed=3) for name in FAMILIES]


@pytest.fixture(scope="module")
def drawn(sets: list[ScoreSet]) -> dict[str, Figure]:
    return {
        "histograms": figures.draw_score_histograms(sets),
        "overlays": figures.draw_fmr_overlays(sets),
        "thresholds": figures.draw_fmr_thresholds(sets),
        "clamped": figures.draw_fmr_thresholds(sets, sensitivity=1.5),
        "scale": figures.draw_shift_by_scale(sets, scales=SCALES),
        "epsilon": figures.draw_shift_by_epsilon(sets),
        "bounds": figures.draw_mse_bounds(),
        "divided": figures.draw_mse_bounds(divided=True),
    }


def panels(figure: Figure, columns: int) -> list[list[Axes]]:
    return [figure.axes[start : start + columns] for start in range(0, len(figure.axes), columns)]


def line(axes: Axes, label: str) -> Line2D:
    (found,) = [each for each in axes.lines if each.get_label() == label]
    return found


def at(found: Line2D, x: float) -> float:
    """The height of the drawn point nearest to x."""
    xs, ys = (np.asarray(data, dtype=float) for data in found.get_data())
    return float(ys[np.argmin(np.abs(xs - x))])


def nearest(found: Line2D, x: float) -> float:
    xs = np.asarray(found.get_xdata(), dtype=float)
    return float(xs[np.argmin(np.abs(xs - x))])


def clamp(scores: ScoreSet) -> np.ndarray:
    return np.clip(scores.impostor, -0.5, 1)


class TestCalibrated:
    @pytest.mark.parametrize(("epsilon", "private"), [(5, True), (9.7, True), (9.8, False), (40, False)])
    def test_conservative(self, epsilon: float, private: bool) -> None:
        rule = figures.calibrate_rule("conservative", epsilon, 1e-6, 2.0)
        assert rule.scale == pytest.approx(2 * math.sqrt(2 * math.log(2e6)) / epsilon)
        assert rule.is_private == private
        assert rule.true_epsilon == pytest.approx(max(epsilon, calibration.find_epsilon(1e-6, 2 / rule.scale)))

    def test_analytic_is_always_private(self) -> None:
        assert all(figures.calibrate_rule("analytic", e, 1e-6, 1.5).is_private for e in figures.EPSILONS)


def test_histograms_report_rejections(drawn: dict[str, Figure], sets: list[ScoreSet]) -> None:
    for axes, scores in zip(drawn["histograms"].axes, sets, strict=True):
        assert f"impostor {scores.rejected_impostor:.2%}, genuine {scores.rejected_genuine:.2%}" in axes.get_title()
        assert any(f"{np.mean(scores.impostor < -0.5):.2%}" in text.get_text() for text in axes.texts)
        outlines = {patch.get_label(): patch.get_xy() for patch in axes.patches if patch.get_label() in vars(scores)}
        for side in ("impostor", "genuine"):
            density, _ = np.histogram(getattr(scores, side), np.linspace(-1, 1, 101), density=True)
            assert outlines[side][:, 1].max() == pytest.approx(density.max())


def test_histograms_of_an_odd_number_of_sets(sets: list[ScoreSet]) -> None:
    assert len(figures.draw_score_histograms(sets[:3]).axes) == 3


class TestOverlays:
    def test_rates(self, drawn: dict[str, Figure], sets: list[ScoreSet]) -> None:
        for row, scores in zip(panels(drawn["overlays"], 3), sets, strict=True):
            for axes, epsilon in zip(row, (5, 10, 15), strict=True):
                clean = line(axes, "clean")
                t = nearest(clean, 0.4)
                assert at(clean, t) == np.mean(scores.impostor > t)
                for sensitivity, impostor in ((2, scores.impostor), (1.5, clamp(scores))):
                    drawn_rate = at(line(axes, f"analytic, Δ = {sensitivity:g}"), t)
                    scale = ss.calibrate(epsilon, 1e-6, sensitivity)
                    assert drawn_rate == pytest.approx(decisions.false_match_rate(impostor, t, scale), rel=1e-9)

    def test_scores_are_clamped(self, drawn: dict[str, Figure], sets: list[ScoreSet]) -> None:
        axes = panels(drawn["overlays"], 3)[1][2]  # Beta: 5 % of impostors lie below -0.5
        curve = line(axes, "analytic, Δ = 1.5")
        t = nearest(curve, 0.0)
        unclamped = decisions.false_match_rate(sets[1].impostor, t, ss.calibrate(15, 1e-6, 1.5))
        assert at(curve, t) > 1.001 * unclamped

    def test_what_is_not_private_is_marked(self, drawn: dict[str, Figure]) -> None:
        for row in panels(drawn["overlays"], 3):
            for axes, epsilon in zip(row, (5, 10, 15), strict=True):
                for sensitivity in ("2", "1.5"):
                    analytic = line(axes, f"analytic, Δ = {sensitivity}")
                    assert analytic.get_color() == plots.RED
                    (rule,) = [
                        each
                        for each in axes.lines
                        if str(each.get_label()).startswith(f"conservative, Δ = {sensitivity}")
                        and ("not private" in str(each.get_label()) or sensitivity in str(each.get_label())[-3:])
                    ]
                    assert ("not private: true ε" in str(rule.get_label())) == (epsilon > 9.73)
                    assert (rule.get_color() == plots.NOT_PRIVATE) == (epsilon > 9.73)
                    assert (rule.get_color() == plots.AMBER) == (epsilon < 9.73)
        titles = [axes.get_title() for axes in panels(drawn["overlays"], 3)[0]]
        assert "not private" not in titles[0]
        with pytest.raises(ss.InvalidCalibration) as refused:
            ss.calibrate(15, 1e-6, 2.0, "conservative")
        assert f"true ε = {refused.value.true_epsilon:.4g}" in titles[2]


@pytest.mark.parametrize(("name", "sensitivity"), [("thresholds", 2.0), ("clamped", 1.5)])
def test_thresholds(drawn: dict[str, Figure], sets: list[ScoreSet], name: str, sensitivity: float) -> None:
    seen = set()
    for row, scores in zip(panels(drawn[name], 4), sets, strict=True):
        impostor = np.clip(scores.impostor, 1 - sensitivity, 1)
        for axes, epsilon in zip(row, (5, 10, 20, 30), strict=True):
            scale = ss.calibrate(epsilon, 1e-5, sensitivity)
            found = decisions.recalibrate(impostor, 1e-2, scale)
            seen.add(found.feasible)
            moved = line(axes, "recalibrated threshold")
            assert line(axes, "clean threshold").get_xdata()[0] == found.clean_threshold
            assert moved.get_xdata()[0] == pytest.approx(found.unclipped_threshold, abs=1e-9)
            assert (moved.get_color() == plots.RED) == found.feasible
            assert ("out of reach on clipped scores" in axes.get_title()) == (not found.feasible)
            assert any(text.get_text() == f"{found.unclipped_shift:+.3f}" for text in axes.texts)
            private, beyond = line(axes, "private rate"), line(axes, "unclipped private rate")
            assert max(private.get_xdata()) < 1 <= min(beyond.get_xdata())
            t = nearest(private, 0.5)
            assert at(private, t) == pytest.approx(decisions.false_match_rate(impostor, t, scale), rel=1e-9)
            assert axes.get_xlim()[1] > found.unclipped_threshold
    assert seen == ({True, False} if sensitivity == 1.5 else {False})


def test_shift_against_scale(drawn: dict[str, Figure], sets: list[ScoreSet]) -> None:
    main = [axes for axes in drawn["scale"].axes if axes.lines]
    for row, target in zip((main[:4], main[4:8]), (1e-2, 1e-3), strict=True):
        for axes, scores in zip(row, sets, strict=True):
            critical = decisions.critical_scale(scores.impostor, target)
            (shade,) = [patch for patch in axes.patches if patch.get_label() == "infeasible"]
            corners = np.atleast_2d(shade.get_xy())  # a polygon before Matplotlib 3.9, a rectangle since
            assert corners[:, 0].min() == pytest.approx(critical)
            shift, unclipped = line(axes, "shift"), line(axes, "unclipped shift")
            assert (np.isnan(np.asarray(shift.get_ydata())) == (critical <= SCALES)).all()
            for scale in (SCALES[1], SCALES[6], SCALES[-1]):
                found = decisions.recalibrate(scores.impostor, target, float(scale))
                assert at(shift, scale) == pytest.approx(found.shift, nan_ok=True)
                assert at(unclipped, scale) == pytest.approx(found.unclipped_shift)
                assert at(line(axes, "small-noise law"), scale) == pytest.approx(found.small_noise_shift)
            (top,) = axes.child_axes
            marks = dict(zip([t.get_text() for t in top.get_xticklabels()], top.get_xticks(), strict=True))
            assert marks["30"] == pytest.approx(ss.calibrate(30, 1e-6, 2.0))
            assert all(mark <= SCALES[-1] for mark in marks.values())


def test_shift_against_epsilon(drawn: dict[str, Figure], sets: list[ScoreSet]) -> None:
    for row, sensitivity in zip(panels(drawn["epsilon"], 4), (2.0, 1.5), strict=True):
        for axes, scores in zip(row, sets, strict=True):
            impostor = np.clip(scores.impostor, 1 - sensitivity, 1)
            for method in ("conservative", "classical", "analytic"):
                for epsilon in (1, 8, 10, 40):
                    rule = figures.calibrate_rule(method, epsilon, 1e-6, sensitivity)
                    found = decisions.recalibrate(impostor, 1e-2, rule.scale)
                    kind = "feasible" if found.feasible else "infeasible"
                    marks = line(axes, f"{method}, {kind}" + ("" if rule.is_private else ", not private"))
                    assert epsilon in marks.get_xdata()
                    assert at(marks, epsilon) == pytest.approx(found.unclipped_shift)
                    assert marks.get_marker() == ("o" if found.feasible else "v")
                    assert (marks.get_markerfacecolor() == "white") == (not rule.is_private)
                    assert rule.is_private == (method == "analytic" or epsilon < 10)
    texts = {text.get_text() for text in drawn["epsilon"].axes[0].texts}
    assert f"true ε {figures.calibrate_rule('conservative', 40, 1e-6, 2.0).true_epsilon:.4g}" in texts


class TestBounds:
    C = 2 * math.log(2e6) / 25

    @pytest.mark.parametrize(("name", "divisor"), [("bounds", 1.0), ("divided", C)])
    def test_values(self, drawn: dict[str, Figure], name: str, divisor: float) -> None:
        rows = panels(drawn[name], 3)
        assert [axes.get_xscale() for axes in drawn[name].axes[::3]] == ["log", "linear", "linear", "linear"]
        assert [axes.get_yscale() for axes in drawn[name].axes[::3]] == ["log", "log", "linear", "log"]
        for row in rows:
            for place, axes in enumerate(row):
                n = int(nearest(line(axes, bound_figures._NAIVE), 40))
                sensitivity = (2.0, 2 * math.sqrt(2 * (n - 1)), 1.0)[place]
                options = {"rank": 8, "diagonal_noise": True} if place else {}
                found = risk.bounds("gram" if place else "scores", n, math.sqrt(self.C) * sensitivity, **options)
                assert at(line(axes, bound_figures._NAIVE), n) == pytest.approx(found["naive"].value / divisor)
                assert at(line(axes, "global, σ GC(C)"), n) == pytest.approx(found["global"].value / divisor)
                least = min(bound.value for bound in found.valid)
                assert at(line(axes, bound_figures._LEAST), n) == pytest.approx(least / divisor)
                exact = risk.bounds(found.regime, n, ss.calibrate(5, 1e-6, sensitivity), **options)
                assert at(line(axes, bound_figures._LEAST_ANALYTIC), n) == pytest.approx(exact.best.value / divisor)

    def test_conditional_bound_dashed_never(self, drawn: dict[str, Figure]) -> None:
        """The conditional bound is dashed and never the least."""
        for row in panels(drawn["bounds"], 3):
            assert not any("conditional, " in str(each.get_label()) for each in row[0].lines)
            for axes in row[1:]:
                conditional = line(axes, "rank-aware: conditional, may fail")
                assert conditional.get_linestyle() == "--"
        beyond = at(line(axes, bound_figures._LEAST), 64), at(conditional, 64)
        assert beyond[0] > beyond[1]  # it would have won here

    def test_where_the_rule_is_not_private(self) -> None:
        with pytest.raises(ss.InvalidInput, match="conservative rule is private"):
            figures.draw_mse_bounds(epsilon=20.0)


def test_texts_keep_apart(drawn: dict[str, Figure]) -> None:
    """Panels with their labels, the legend and the caption lie inside the picture and on their own ground."""
    for name in ("histograms", "overlays", "clamped", "scale", "epsilon", "divided"):
        figure = drawn[name]
        figure.draw_without_rendering()
        (caption,) = [text for text in figure.texts if len(text.get_text()) > 80]
        (legend,) = figure.legends
        below, middle = caption.get_window_extent(), legend.get_window_extent()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        assert below.y1 <= middle.y0 + 1, name
        assert middle.y1 <= min(box.y0 for box in boxes) + 1, name
        assert figure._suptitle.get_window_extent().y0 >= max(box.y1 for box in boxes) - 1, name
        for box in (below, middle, *boxes):
            assert figure.bbox.x0 - 1 <= box.x0, name
            assert box.x1 <= figure.bbox.x1 + 1, name
            assert figure.bbox.y0 <= box.y0, name
        for one, other in pairwise(boxes):
            assert one.x1 <= other.x0 + 1 or one.y0 >= other.y1 - 1, name


def test_every_caption_names_what_differs(drawn: dict[str, Figure]) -> None:
    for name, figure in drawn.items():
        assert any("paper" in text.get_text() for text in figure.texts), name
    for name in ("overlays", "clamped", "epsilon"):
        caption = " ".join(drawn[name].texts[-1].get_text().split())
        assert "clamped to the public range [−0.5, 1] before noise" in caption


def test_colours_are_those_of_the_other_pictures() -> None:
    assert {to_hex(colour) for colour in (plots._CLEAN, plots._NOISY, plots._PROJECTED)} == {
        plots.BLUE,
        plots.GREY,
        plots.RED,
    }


def test_a_set_of_ones_own(sets: list[ScoreSet]) -> None:
    own = ScoreSet("my matcher", sets[0].impostor, sets[0].genuine)
    assert figures.draw_score_histograms([own]).axes[0].get_title().startswith("my matcher (rejected: impostor 0.00%")


def test_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    empty = plots.make_figure(1, 1)  # what is in the others is tested above, and takes its time to render
    for name in ("fmr_overlays", "fmr_thresholds", "shift_by_scale", "shift_by_epsilon", "mse_bounds"):
        monkeypatch.setattr(figures, f"draw_{name}", lambda *_, **__: empty)
    told: list[tuple[int, int]] = []
    folder = tmp_path / "new" / "folder"
    made = figures.make_figures(folder, scores_per_side=1000, progress=lambda *step: told.append(step))
    assert told == [(done, 8) for done in range(1, 9)]
    assert sorted(made) == sorted(folder.iterdir())
    assert len(made) == 8
    for path in made:
        content = path.read_bytes()
        assert content.startswith(b"\x89PNG\r\n")
        assert content.endswith(b"IEND\xaeB`\x82")


def test_bad_input(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match="scores_per_side"):
        figures.make_figures(tmp_path / "out", scores_per_side=999)
    (tmp_path / "file").touch()
    with pytest.raises(ss.FileError, match="Cannot make the folder"):
        figures.make_figures(tmp_path / "file", scores_per_side=1000)
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
