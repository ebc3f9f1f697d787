"""Bands are the mean and the sample deviation of what was measured, and no false promise looks like a true one."""

from __future__ import annotations

import math
from itertools import combinations, pairwise
from statistics import mean, stdev
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

import scoreshield as ss
from scoreshield.bench.report import bands, pictures
from scoreshield.bench.report.frames import Summary, drop_gap, list_values, make_frame, select_rows, summarise
from scoreshield.report import plots

EPSILONS = (0.1, 1.0, 10.0, 100.0)
WORDS = {"metric": "Spearman", "title": "A title", "caption": "A caption that says what is to be seen."}


def row(**changes: Any) -> dict[str, Any]:
    usual = {
        "experiment": "gram",
        "dataset": "STS-B",
        "task": "sts",
        "metric": "Spearman",
        "better": "higher",
        "value": 0.5,
        "method": "exact",
        "setting": "contract",
        "radius": 2.0,
        "epsilon": 1.0,
        "delta": 1e-8,
        "target_advantage": None,
        "true_epsilon": changes.get("epsilon", 1.0),
        "true_delta": 1e-8,
        "attack_auc": 0.7,
        "attack_advantage": 0.3,
        "noise_std": 1.0,
        "n": 100,
        "repeat": 0,
        "seed": 0,
        "seconds": 1.0,
    }
    return usual | changes


def clean(value: float, **changes: Any) -> dict[str, Any]:
    nothing = dict.fromkeys(("radius", "epsilon", "delta", "true_epsilon", "attack_advantage"))
    return row(**{"value": value, "method": "non-private", "setting": "clean", **nothing, **changes})


def grid_rows(radii: tuple[Any, ...] = (0.5, 2.0, None), deltas: tuple[float, ...] = (1e-8, 1e-2)) -> list[Any]:
    rng = np.random.default_rng(3)
    places = [(m, r, d, e) for m in ("exact", "aap (paper)") for r in radii for d in deltas for e in EPSILONS]
    return [
        row(method=m, radius=r, delta=d, epsilon=e, repeat=k, seed=k, value=float(rng.random()))
        for m, r, d, e in places
        for k in range(5)
    ]


def line(axes: Any, label: str) -> Line2D:
    (found,) = [each for each in axes.lines if each.get_label() == label]
    return found


def xy(found: Line2D) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in zip(found.get_xdata(), found.get_ydata(), strict=True)]


def legend(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.legends[0].get_texts()]


def summarise_values(*values: float) -> Summary:
    return summarise(make_frame([row(value=value) for value in values], ("method",), value="value")["value"])


class TestMeanAndSd:
    def test_by_hand(self) -> None:
        assert summarise_values(1.0, 2.0, 6.0) == Summary(3.0, math.sqrt(7.0), 3, 0)
        assert summarise_values(7.0) == Summary(7.0, 0.0, 1, 0)

    def test_out_reach_counted_averaged(self) -> None:
        """What is out of reach is counted and not averaged."""
        assert summarise_values(1.0, math.nan, 3.0) == Summary(2.0, math.sqrt(2.0), 2, 1)
        found = summarise_values(math.nan, np.float32("nan"))
        assert math.isnan(found.mean)
        assert math.isnan(found.sd)
        assert (found.count, found.unreachable) == (0, 2)

    def test_gaps(self) -> None:
        """NaN in a column is a gap, which reads as None."""
        frame = make_frame([row(epsilon=float("nan")), row(epsilon=np.float64("nan"))], ("epsilon",), value="seconds")
        assert list_values(frame, "epsilon") == [None]
        assert [drop_gap(value) for value in frame["epsilon"]] == [None, None]
        assert len(select_rows(frame, epsilon=None)) == 2

    @pytest.mark.parametrize(
        ("rows", "column", "said"),
        [
            ([], "method", "at least one"),
            (None, "method", "list of dicts"),
            ([1], "method", "list of dicts"),
            ([row()], "colour", "key 'colour'"),
            ([row(value=math.inf)], "method", "Got inf"),
            ([row(value=None)], "method", "Got None"),
            ([row(value=True)], "method", "Got True"),
            ([row(value="1")], "method", "Got '1'"),
            ([row(method=["exact"])], "method", "column 'method'"),
        ],
    )
    def test_bad_input(self, rows: Any, column: str, said: str) -> None:
        with pytest.raises(ss.InvalidInput, match=said):
            make_frame(rows, (column,), value="value")


@pytest.fixture(scope="module")
def drawn() -> tuple[list[Any], Figure]:
    rows = [*grid_rows(), *(clean(value, repeat=k) for k, value in enumerate((0.8, 0.9)))]
    return rows, bands.draw_bands(rows, **WORDS)


class TestGrid:
    def test_panel_pair_named_order(self, drawn: tuple[list[Any], Figure]) -> None:
        """One panel for each pair named and in order."""
        titles = [axes.get_title().replace("\N{NO-BREAK SPACE}", " ") for axes in drawn[1].axes]
        assert titles == [
            f"{radius}, δ = {delta}"
            for radius in ("$D_G$ = 0.5", "$D_G$ = 2", "one whole record")
            for delta in ("10⁻⁸", "10⁻²")
        ]
        assert len({axes.get_ylim() for axes in drawn[1].axes}) == 1
        assert {axes.get_xscale() for axes in drawn[1].axes} == {"log"}
        assert [axes.get_ylabel() for axes in drawn[1].axes[::2]] == ["Spearman (higher is better)"] * 3

    def test_every_mean_and_band(self, drawn: tuple[list[Any], Figure]) -> None:
        rows, figure = drawn
        places = [(radius, delta) for radius in (0.5, 2.0, None) for delta in (1e-8, 1e-2)]
        for axes, (radius, delta) in zip(figure.axes, places, strict=True):
            for order, method in enumerate(("exact", "aap (paper)")):
                values = {
                    e: [
                        one["value"]
                        for one in rows
                        if (one["method"], one["radius"], one["delta"], one["epsilon"]) == (method, radius, delta, e)
                    ]
                    for e in EPSILONS
                }
                expected = [(e, pytest.approx(mean(values[e]))) for e in EPSILONS]
                assert xy(line(axes, method)) == expected
                assert xy(line(axes, f"{method}, private")) == expected
                corners = axes.collections[order].get_paths()[0].vertices
                for e in EPSILONS:
                    ends = corners[np.isclose(corners[:, 0], e), 1]
                    assert ends.min() == pytest.approx(mean(values[e]) - stdev(values[e]))
                    assert ends.max() == pytest.approx(mean(values[e]) + stdev(values[e]))

    def test_clean_value_crosses_every_panel(self, drawn: tuple[list[Any], Figure]) -> None:
        """The clean value crosses every panel with its own band."""
        for axes in drawn[1].axes:
            found = line(axes, "non-private")
            assert list(found.get_ydata()) == [pytest.approx(0.85)] * 2
            assert found.get_linestyle() == "--"
            (band,) = axes.patches
            assert band.get_y() == pytest.approx(0.85 - stdev((0.8, 0.9)))
            assert band.get_height() == pytest.approx(2 * stdev((0.8, 0.9)))
        assert legend(drawn[1]) == ["exact", "aap (paper)", "non-private"]

    def test_texts_keep_apart(self, drawn: tuple[list[Any], Figure]) -> None:
        figure = drawn[1]
        figure.draw_without_rendering()
        (caption,) = [text for text in figure.texts if text.get_text().startswith("A caption")]
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        below, middle = caption.get_window_extent(), figure.legends[0].get_window_extent()
        assert below.y1 <= middle.y0 + 1
        assert middle.y1 <= min(box.y0 for box in boxes) + 1
        for one, other in combinations(boxes, 2):
            assert one.x1 <= other.x0 + 1 or one.y0 >= other.y1 - 1


def test_clean_values_stand_once_budget() -> None:
    """Clean values that stand once for each budget count once."""
    copies = [clean(value, repeat=k, delta=d) for k, value in enumerate((0.7, 0.9)) for d in (1e-8, 1e-2, 1e-5)]
    (axes,) = bands.draw_bands([row(), *copies], **WORDS).axes
    (band,) = axes.patches
    assert band.get_height() == pytest.approx(2 * stdev((0.7, 0.9)))
    figure = bands.draw_bands([row(), *copies], **WORDS, clean=False)
    assert legend(figure) == ["exact"]
    assert not any(each.get_label() == "non-private" for each in figure.axes[0].lines)


def test_clean_values_another_data_set() -> None:
    """Clean values of another data set stay in their panel."""
    sets = (("a", 0.8), ("b", 0.6))
    rows = [part for name, value in sets for part in (row(dataset=name), clean(value, dataset=name))]
    figure = bands.draw_bands(rows, **WORDS, rows_by="dataset")
    assert [axes.get_title().split(",")[0] for axes in figure.axes] == ["a", "b"]
    assert [line(axes, "non-private").get_ydata()[0] for axes in figure.axes] == [0.8, 0.6]
    with pytest.raises(ss.InvalidInput, match="several of 'dataset'"):
        bands.draw_bands([row(dataset="a"), *rows[1::2]], **WORDS)


@pytest.mark.parametrize(
    ("true_epsilon", "private"),
    [
        (10.0, True),
        (9.0, True),
        (10.0 * (1 + 5e-10), True),
        (10.0 * (1 + 2e-9), False),
        (33.5, False),
        (math.inf, False),
    ],
)
def test_a_false_promise_is_hollow(true_epsilon: float, private: bool) -> None:
    rows = [row(epsilon=1.0, value=0.2), row(epsilon=10.0, true_epsilon=true_epsilon, value=0.6)]
    figure = bands.draw_bands(rows, **WORDS)
    (axes,) = figure.axes
    kept, broken = line(axes, "exact, private"), line(axes, "exact, not private")
    assert xy(kept) == [(1.0, 0.2), *([(10.0, 0.6)] if private else [])]
    assert xy(broken) == ([] if private else [(10.0, 0.6)])
    assert broken.get_markerfacecolor() == "white"
    assert broken.get_markeredgecolor() == plots.NOT_PRIVATE
    assert kept.get_markerfacecolor() == bands.METHOD_STYLE["exact"]["color"]
    assert ("hollow: the claimed ε is not the true one" in legend(figure)) == (not private)


def test_one_false_repeat_makes_the_point_hollow() -> None:
    rows = [row(repeat=k, true_epsilon=1.0 + (k == 3)) for k in range(5)]
    (axes,) = bands.draw_bands(rows, **WORDS).axes
    assert len(xy(line(axes, "exact, not private"))) == 1


def test_out_reach_cross_below_every_curve() -> None:
    """What is out of reach is a cross below every curve."""
    rows = [row(epsilon=e, value=v) for e, v in ((1.0, 0.4), (1.0, math.nan), (10.0, math.nan), (100.0, 0.8))]
    figure = bands.draw_bands(rows, **WORDS)
    (axes,) = figure.axes
    assert [x for x, _ in xy(line(axes, "exact, out of reach"))] == [1.0, 10.0]
    assert np.isnan(line(axes, "exact").get_ydata()[1]), "the curve breaks there"
    strip = next(patch for patch in axes.patches if patch.get_label() == "out of reach")
    low, high = axes.get_ylim()
    assert low + strip.get_height() * (high - low) < 0.4
    assert "some or all repeats out of reach" in legend(figure)
    assert "no data" not in {text.get_text() for text in axes.texts}


@pytest.mark.parametrize("rows", range(1, 5))
@pytest.mark.parametrize("columns", range(1, 5))
def test_grids_of_any_size_render(rows: int, columns: int) -> None:
    many = [row(radius=float(r), delta=10.0**-d) for r in range(1, rows + 1) for d in range(1, columns + 1)]
    figure = bands.draw_bands(many, **WORDS)
    figure.draw_without_rendering()
    assert len(figure.axes) == rows * columns


def test_holes_and_nothing_at_all() -> None:
    rows = [row(radius=1.0, delta=1e-8), row(radius=2.0, delta=1e-2), row(radius=2.0, delta=1e-8, value=math.nan)]
    figure = bands.draw_bands(rows, **WORDS)
    said = [[text.get_text() for text in axes.texts] for axes in figure.axes]
    assert said == [[], ["no data"], ["every point is out of reach"], []]
    figure = bands.draw_bands([row(value=math.nan)], **WORDS)
    figure.draw_without_rendering()
    assert figure.axes[0].get_ylim()[1] == 1.0


def test_methods_asked_their_order() -> None:
    """Methods are those asked for in their order."""
    rows = [row(method=name) for name in ("exact", "rank", "sure")]
    assert legend(bands.draw_bands(rows, **WORDS, methods=["sure", "exact"])) == ["sure", "exact"]
    with pytest.raises(ss.InvalidInput, match="one of 'exact', 'rank', 'sure'"):
        bands.draw_bands(rows, **WORDS, methods=["AAP"])
    with pytest.raises(ss.InvalidInput, match="list of names"):
        bands.draw_bands(rows, **WORDS, methods="sure")


@pytest.mark.parametrize(
    ("rows", "options", "said"),
    [
        ([row(setting="contract"), row(setting="paper")], {}, "with setting 'contract' and 'paper'"),
        ([row(setting="paper"), row(setting="contract")], {}, "put 'setting' into"),
        ([row(delta=1e-8), row(delta=1e-2)], {"columns_by": None}, "with delta"),
        ([row()], {"metric": "NMI"}, "one of 'Spearman'"),
        ([row()], {"x": "delta"}, "'x' parameter"),
        ([clean(0.8)], {}, "method with privacy"),
        ([row(epsilon=0.0)], {}, "'epsilon'"),
        ([row(epsilon=None)], {}, "'epsilon'"),
        ([row(true_epsilon=None)], {}, "'true_epsilon'"),
        ([row(true_epsilon=math.nan)], {}, "'true_epsilon'"),
        ([row(attack_advantage=1.5)], {"x": "attack_advantage"}, r"in \[0, 1\]"),
        ([{"metric": "Spearman", "method": "exact", "value": 1.0, "better": "higher"}], {}, "key 'epsilon'"),
    ],
)
def test_bad_input(rows: Any, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ss.InvalidInput, match=said):
        bands.draw_bands(rows, **{**WORDS, **options})


def curves(axes: Any) -> list[str]:
    """The labels of the curves and lines of a panel, without marks."""
    return [str(each.get_label()) for each in axes.lines if each.get_linestyle() != "None"]


class TestSixCurves:
    @staticmethod
    def ranked(count: int, better: str = "higher", **changes: Any) -> list[Any]:
        """Method m0 has the best value at each of two budgets."""
        sign = -1 if better == "higher" else 1
        places = [(k, e) for k in range(count) for e in (1.0, 10.0)]
        return [row(method=f"m{k}", epsilon=e, value=sign * k * e, better=better, **changes) for k, e in places]

    @pytest.mark.parametrize("better", ["higher", "lower"])
    def test_best_by_mean_rank_beside_references(self, better: str) -> None:
        references = [clean(0.8), clean(0.1, method="no similarities")]
        figure = bands.draw_bands([*self.ranked(9, better), *references], **WORDS, keep=("m7",))
        (axes,) = figure.axes
        assert curves(axes) == ["m0", "m1", "m2", "m7", "non-private", "no similarities"]
        assert legend(figure) == curves(axes)
        said = " ".join(text.get_text() for text in figure.texts).replace("\n", " ")
        assert "Drawn of 9 methods: m7 and the 3 best of the others by mean rank. The tables have all." in said

    def test_all_that_have_room(self) -> None:
        figure = bands.draw_bands([*self.ranked(5), clean(0.8)], **WORDS)
        assert len(curves(figure.axes[0])) == bands.MOST_CURVES == 6
        assert not any("Drawn of" in text.get_text() for text in figure.texts)

    def test_out_of_reach_is_last(self) -> None:
        lost = [row(method="lost", epsilon=e, value=math.nan) for e in (1.0, 10.0)]
        assert "lost" not in legend(bands.draw_bands([*lost, *self.ranked(6)], **WORDS))

    def test_ranks_are_within_a_panel(self) -> None:
        """A method of one panel only is not judged by the values of another one."""
        alone = [row(method="alone", radius=None, epsilon=e, value=-50.0) for e in (1.0, 10.0)]
        rows = [*self.ranked(8), *alone]
        figure = bands.draw_bands(rows, **WORDS, rows_by=None, columns_by="radius")
        assert legend(figure) == ["m0", "m1", "m2", "m3", "m4", "alone"]
        assert [len(curves(axes)) for axes in figure.axes] == [5, 1]

    def test_at_equal_attack_by_target(self) -> None:
        rows = [
            row(method=f"m{k}", epsilon=e, value=-float(k), target_advantage=a, attack_advantage=a - 0.001 * k)
            for k in range(9)
            for e, a in ((1.0, 0.5), (10.0, 0.9))
        ]
        assert legend(bands.draw_bands_by_advantage(rows, **WORDS)) == [f"m{k}" for k in range(6)]

    @pytest.mark.parametrize(("name", "methods"), [("dp-rag", pictures._SCORES), ("gram-vision", pictures._OURS)])
    def test_every_planned_picture(self, name: str, methods: tuple[str, ...]) -> None:
        """All methods, budgets, radii and deltas at once."""
        contract = [
            row(method=m, radius=r, delta=d, epsilon=e, value=e * place)
            for place, m in enumerate(methods)
            for r in ((0.5, 1.0, 2.0, None) if name == "gram-vision" else (None,))
            for d in (1e-8, 1e-5)
            for e in (1.0, 10.0)
        ]
        paper = [
            one | {"setting": "paper", "method": m}
            for m in (pictures._PAPER if name == "gram-vision" else ("gaussian (paper)",))
            for one in contract
            if one["method"] == methods[-1] and (one["radius"] is not None or name == "dp-rag")
        ]
        contract = [one for one in contract if one["method"] != "gaussian (paper)"]
        attack = [
            one | {"setting": "advantage", "radius": None, "target_advantage": 0.1 * one["epsilon"] / 2}
            for one in contract
            if one["radius"] is None and one["delta"] == 1e-8
        ]
        references = [clean(0.8), clean(0.1, method="no similarities")]
        planned = dict(pictures.plan_pictures(name, [*contract, *paper, *attack, *references]))
        assert len(planned) == (2 if name == "dp-rag" else 3)
        for stem, draw in planned.items():
            figure = draw()
            for axes in figure.axes:
                assert 4 <= len(curves(axes)) <= 6, (stem, curves(axes))
                if stem.endswith("spearman") and name == "gram-vision":
                    assert {"noisy", "exact", "index"} <= set(legend(figure))
                    assert len(figure.axes) == 4, "one delta, as in the tables"

    def test_of_claims(self) -> None:
        rows = [
            row(radius=r, n=n, epsilon=e, delta=d, true_epsilon=2 * e)
            for r, n in ((None, 5000), (0.5, 64), (1.0, 64), (2.0, 64), (2.0, 300), (4.0, 64), (8.0, 64))
            for e in (1.0, 10.0)
            for d in (1e-8, 1e-5)
        ]
        frame = make_frame(rows, ("radius",))
        frame["released"] = list(map(pictures.describe_release, frame["radius"], frame["n"]))
        figure = pictures.draw_true_epsilons(frame)
        assert len(curves(figure.axes[0])) == 6
        labels = [label.replace("\N{NO-BREAK SPACE}", " ") for label in legend(figure)]
        assert labels[0] == "scores of a query, δ = 10⁻⁸"
        assert "Gram matrix of radius 2, n = 300, δ = 10⁻⁸" in labels
        assert labels[-1] == "true = claimed"


def test_a_long_line_of_panels_is_wrapped() -> None:
    figure = bands.draw_bands([row(dataset=f"set {k}") for k in range(5)], **WORDS, rows_by=None, columns_by="dataset")
    figure.draw_without_rendering()
    assert [axes.get_subplotspec().get_gridspec().get_geometry() for axes in figure.axes] == [(2, 3)] * 5
    assert [bool(axes.get_xlabel()) for axes in figure.axes] == [False, False, True, True, True]
    assert figure.get_size_inches()[0] < 12


class TestAdvantage:
    def test_methods_at_equal_advantage(self) -> None:
        rows = [
            row(method=m, target_advantage=a, attack_advantage=a, epsilon=e, delta=d, value=v, radius=None)
            for m, e, d, a, v in (
                ("laplace", 3.0, 0.0, 0.9, 0.5),
                ("laplace", 1.0, 0.0, 0.4, 0.2),
                ("gaussian", 2.0, 1e-6, 0.4, 0.3),
                ("gaussian", 9.0, 1e-6, 0.9, 0.6),
            )
        ]
        (axes,) = bands.draw_bands_by_advantage(rows, **WORDS).axes
        assert xy(line(axes, "laplace")) == [(0.4, 0.2), (0.9, 0.5)]
        assert xy(line(axes, "gaussian")) == [(0.4, 0.3), (0.9, 0.6)]
        assert axes.get_title() == "one whole record"
        assert axes.get_xlim()[0] <= 0
        assert axes.get_xlim()[1] >= 1
        assert axes.get_xscale() == "linear"

    def test_the_last_percent_has_room(self) -> None:
        rows = [row(attack_advantage=a, target_advantage=a, epsilon=e) for a, e in ((0.5, 1.0), (0.999, 8.0))]
        rows.append(row(setting="clean", method="non-private"))
        figure = bands.draw_bands_by_advantage(rows, **WORDS)
        figure.draw_without_rendering()  # and without a warning
        (axes,) = figure.axes
        assert axes.get_xscale() == "logit"
        assert axes.get_xlim()[0] < 0.5
        assert 0.999 < axes.get_xlim()[1] < 1
        rows.append(row(attack_advantage=1.0, epsilon=50.0))
        assert bands.draw_bands_by_advantage(rows, **WORDS).axes[0].get_xscale() == "linear"

    def test_far_below_the_target(self) -> None:
        """A mechanism that leaks almost nothing does not stretch the axis."""
        places = ((0.5, 1e-17, 1.0), (0.9, 0.8, 3.0), (0.999, 0.99, 8.0))
        rows = [row(target_advantage=t, attack_advantage=a, epsilon=e) for t, a, e in places]
        figure = bands.draw_bands_by_advantage(rows, **WORDS)
        figure.draw_without_rendering()
        (axes,) = figure.axes
        assert 0.3 < axes.get_xlim()[0] < 0.5
        assert 0.999 < axes.get_xlim()[1] < 0.9999
        labels = [label.get_window_extent() for label in axes.get_xticklabels()]
        assert len(labels) == 5
        assert all(one.x1 < other.x0 for one, other in pairwise(labels))

    def test_adjacencies_are_kept_apart(self) -> None:
        rows = [row(radius=None), row(radius=2.0)]
        assert len(bands.draw_bands_by_advantage(rows, **WORDS).axes) == 2
        with pytest.raises(ss.InvalidInput, match="put 'radius' into"):
            bands.draw_bands_by_advantage(rows, **WORDS, columns_by=None)

    def test_budgets_give_attacker_everything(self) -> None:
        """Budgets that give an attacker everything may coincide."""
        rows = [row(epsilon=e, attack_advantage=1.0) for e in (50.0, 100.0)]
        assert len(xy(line(bands.draw_bands_by_advantage(rows, **WORDS).axes[0], "exact"))) == 2

    def test_out_of_reach_stands_at_its_target(self) -> None:
        rows = [row(), row(epsilon=5.0, value=math.nan, attack_advantage=math.nan, target_advantage=0.05)]
        (axes,) = bands.draw_bands_by_advantage(rows, **WORDS).axes
        assert xy(line(axes, "exact, out of reach"))[0][0] == 0.05


class TestBars:
    @staticmethod
    def timings() -> list[Any]:
        known = {
            ("newton", 100): (1.0, 3.0),
            ("newton", 1000): (20.0,),
            ("sdp", 100): (9.0,),
            ("sdp", 1000): (math.nan,),
        }
        return [row(method=m, n=n, seconds=s) for (m, n), values in known.items() for s in values]

    def test_lengths_and_words(self) -> None:
        rows = [*self.timings(), row(method="aap", n=100, seconds=5.0)]
        figure = bands.draw_bars(rows, title="Time", caption="A caption.", limit=600)
        (axes,) = figure.axes
        widths = [round(patch.get_x() + patch.get_width(), 9) for patch in axes.patches]
        assert widths == [2.0, 9.0, 5.0, 20.0]
        assert [text.get_text() for text in axes.texts] == ["2", "9", "5", "20", "over the limit", "not run"]
        assert [label.get_text() for label in axes.get_yticklabels()] == ["n = 100", "n = 1,000"]
        assert axes.get_xscale() == "log"
        assert axes.get_xlim()[0] < 2.0
        assert axes.get_xlim()[1] > 600
        assert legend(figure) == ["newton", "sdp", "aap", "the limit, 600"]

    def test_whiskers(self) -> None:
        (axes,) = bands.draw_bars(self.timings(), title="Time", caption="A caption.").axes
        (whisker,) = [part.get_segments()[0] for part in axes.collections]
        assert whisker[:, 0] == pytest.approx([2 - math.sqrt(2), 2 + math.sqrt(2)])

    def test_all_over_the_limit(self) -> None:
        figure = bands.draw_bars([row(seconds=math.nan)], title="Time", caption="A caption.")
        figure.draw_without_rendering()
        assert [text.get_text() for text in figure.axes[0].texts] == ["over the limit"]

    @pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, None])
    def test_bad_times(self, seconds: Any) -> None:
        with pytest.raises(ss.InvalidInput, match="'seconds'"):
            bands.draw_bars([row(seconds=seconds), row(seconds=5.0)], title="Time", caption="A caption.")

    def test_bad_limit(self) -> None:
        with pytest.raises(ss.InvalidInput, match="'limit'"):
            bands.draw_bars([row()], title="Time", caption="A caption.", limit=0)


class TestStyle:
    def test_no_two_methods_look_alike(self) -> None:
        looks = [tuple(map(str, style.values())) for style in bands.METHOD_STYLE.values()]
        assert len(set(looks)) == len(looks)

    def test_unknown_method_looks_same_every(self) -> None:
        """An unknown method looks the same every time."""
        style = bands.choose_style("a method of tomorrow")
        assert style == bands.choose_style("a method of tomorrow")
        assert style != bands.choose_style("another one")
        bands.draw_bands([row(method="a method of tomorrow")], **WORDS).draw_without_rendering()

    @pytest.mark.parametrize(
        "together",
        [
            ("noisy", "aap", "exact", "rank", "shrinkage", "identity", "sure", "index", "gaussian index"),
            ("noisy (paper)", "aap (paper)", "exact, on the paper's noise"),
            (
                "gaussian (paper)",
                "gaussian",
                "gaussian, clamped",
                "laplace",
                "staircase",
                "staircase, clamped",
                "optimal",
                "levels",
                "screening",
                "screen and refine",
                "selection",
                "index",
            ),
            ("newton", "aap", "dykstra", "sdp"),
        ],
    )
    def test_drawn_together_differs_any_colour(self, together: tuple[str, ...]) -> None:
        """What is drawn together differs for any colour vision."""
        # Linear-light matrices of Machado, Oliveira & Fernandes (2009), severity 1: protan, deutan.
        protan = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
        deutan = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
        for matrix in (np.eye(3), np.array(protan), np.array(deutan)):
            for one, other in combinations(together, 2):
                styles = bands.METHOD_STYLE[one], bands.METHOD_STYLE[other]
                apart = np.linalg.norm(np.subtract(*(seen(style["color"], matrix) for style in styles)))
                differs = (
                    styles[0]["marker"] != styles[1]["marker"] and styles[0]["linestyle"] != styles[1]["linestyle"]
                )
                assert apart > 12 or (apart > 5 and differs), (one, other, apart)

    def test_without_matplotlib(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
        with pytest.raises(ss.InvalidInput, match=r"scoreshield\[plots\]"):
            bands.draw_bands([row()], **WORDS)


def seen(colour: str, matrix: np.ndarray) -> np.ndarray:
    """CIELAB (D65) of a colour as eyes of this kind see it."""
    c = np.array(to_rgb(colour))
    linear = np.clip(matrix @ np.where(c <= 0.04045, c / 12.92, ((c + 0.055) / 1.055) ** 2.4), 0, 1)
    to_xyz = [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
    x, y, z = np.cbrt(np.maximum(to_xyz @ linear / [0.95047, 1.0, 1.08883], 0.008856))
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def test_samples_different_sizes_repeats() -> None:
    """Samples of different sizes are repeats of one point."""
    rows = [row(n=n, repeat=k, value=v) for k, (n, v) in enumerate(((297, 0.2), (299, 0.4)))]
    rows += [clean(v, n=n, repeat=k) for k, (n, v) in enumerate(((297, 0.8), (299, 0.9)))]
    (axes,) = bands.draw_bands(rows, **WORDS).axes
    assert xy(line(axes, "exact")) == [(1.0, pytest.approx(0.3))]
    assert line(axes, "non-private").get_ydata()[0] == pytest.approx(0.85)
