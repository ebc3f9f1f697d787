"""What experiments measure is what they say: known figures come out again, and the true privacy stands beside each."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from support import find_rows

import scoreshield as ss
from scoreshield.bench.data import compact
from scoreshield.bench.experiments import EXPERIMENTS, mechanisms, run_experiment, table
from scoreshield.bench.experiments.cells import ExperimentCell
from scoreshield.bench.experiments.mechanisms import MECHANISMS
from scoreshield.bench.experiments.speed import _share_of_multiples
from scoreshield.bench.report.pictures import _describe_deltas, describe_size, draw_pictures
from scoreshield.privacy import calibration
from scoreshield.report import plots


def tiny(name: str, folder: Path, data: Path | None, **changes: Any) -> list[table.Row]:
    experiment = EXPERIMENTS[name]
    grid = experiment.make_grid({"repeats": 1, "advantage": [], **changes})
    return run_experiment(experiment, grid, folder, data_dir=data, workers=1)


def value(rows: list[table.Row], **wanted: Any) -> float:
    found = find_rows(rows, **wanted)
    assert found, wanted
    return float(np.mean([row["value"] for row in found]))


class TestFaces:
    @pytest.fixture(scope="class")
    @classmethod
    def rows(cls, tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> list[table.Row]:
        return tiny(
            "dp-fr", tmp_path_factory.mktemp("runs") / "fr", shared_data,
            datasets=["lfw/faceres_centred"], epsilon=[1, 5, 10, 100], delta=[1e-4], advantage=[0.5], repeats=3,
        )  # fmt: skip

    @pytest.mark.parametrize(
        ("setting", "method", "reference"),
        [
            ("paper", "gaussian (paper)", {1: 0.513, 5: 0.561, 10: 0.618}),
            ("contract", "staircase, clamped", {1: 0.682, 5: 0.954, 10: 0.980}),
            ("contract", "levels", {1: 0.722, 5: 0.974, 10: 0.980}),
        ],
    )
    def test_accuracies_measured_project_come(
        self, rows: list[table.Row], setting: str, method: str, reference: dict[float, float]
    ) -> None:
        """Three repeats of 6,000 pairs: the standard error is below 0.004; 0.02 is five of them."""
        for epsilon, known in reference.items():
            found = value(rows, setting=setting, method=method, epsilon=epsilon, metric="accuracy")
            assert found == pytest.approx(known, abs=0.02)
        assert value(rows, setting="clean", metric="accuracy") == pytest.approx(0.98, abs=0.003)

    def test_the_paper_carries_its_true_pair(self, rows: list[table.Row]) -> None:
        for row in find_rows(rows, setting="paper", metric="accuracy", repeat=0):
            mu = calibration.compute_rule_mu(row["epsilon"], 1e-4, "conservative")
            assert row["true_epsilon"] == pytest.approx(calibration.find_epsilon(1e-4, mu), rel=1e-6)
            assert row["true_delta"] == pytest.approx(calibration.compute_delta(row["epsilon"], mu), rel=1e-3)
        assert value_of(rows, "true_epsilon", setting="paper", epsilon=100) == pytest.approx(335, abs=1)
        assert value_of(rows, "true_delta", setting="paper", epsilon=100) == pytest.approx(1.0, abs=1e-6)
        assert value_of(rows, "true_epsilon", setting="paper", epsilon=1) < 1

    def test_equal_attack_every_mechanism_gives(self, rows: list[table.Row]) -> None:
        """At equal attack every mechanism gives the same away."""
        attacked = find_rows(rows, setting="advantage")
        assert {row["mechanism"] for row in attacked} == set(EXPERIMENTS["dp-fr"].make_grid().mechanism)
        for row in attacked:
            assert row["attack_advantage"] == pytest.approx(0.5, abs=1e-6)

    def test_no_pure_mechanism_beats_the_ceiling(self, rows: list[table.Row]) -> None:
        """Right about one record at most e^eps / (1 + e^eps) of the time; 6,000 decisions, five standard errors."""
        for row in find_rows(rows, setting="contract", delta=0.0, metric="accuracy"):
            ceiling = math.exp(row["epsilon"]) / (1 + math.exp(row["epsilon"]))
            assert row["value"] < ceiling + 5 * math.sqrt(0.25 / 6000)

    def test_collection_exactly_scores(self, shared_data: Path) -> None:
        """The collection has exactly those scores."""
        grid = EXPERIMENTS["dp-fr"].make_grid({"datasets": ["lfw/dlib"]})
        loaded = EXPERIMENTS["dp-fr"].load(grid, shared_data)["lfw/dlib"]
        clean = compact.load_compact_lfw_scores(shared_data, "dlib").scores
        release = ss.release_scores(loaded.rows, [1.0, 0.0], epsilon=1e6, mechanism="laplace", rng=1)
        assert np.abs(release.noisy - clean).max() < 1e-4


def test_rates_set_too_small_gaps(tmp_path: Path) -> None:
    """Rates that a set is too small for are gaps."""
    rows = tiny(
        "dp-fr", tmp_path / "run", None, datasets=["synthetic/gaussian"], epsilon=[10], delta=[1e-4],
        mechanism=["staircase, clamped"], options={"scores_per_side": 200_000},
        metrics=["tar@1e-4", "tar@1e-5", "tar@1e-6"],
    )  # fmt: skip
    clean = {row["metric"]: row["value"] for row in find_rows(rows, setting="clean")}
    made = EXPERIMENTS["dp-fr"].load(EXPERIMENTS["dp-fr"].make_grid({"datasets": ["synthetic/gaussian"]}), None)
    scores = made["synthetic/gaussian"]
    third = np.sort(scores.clean[~scores.same])[-3]  # two impostors of 200,000 may pass
    assert clean["tar@1e-5"] == pytest.approx(float(np.mean(scores.clean[scores.same] > third)), abs=1e-9)
    assert clean["tar@1e-5"] < clean["tar@1e-4"]
    assert clean["tar@1e-6"] is None
    # What no row knows is not drawn.
    stems = {path.stem for path in draw_pictures("dp-fr", rows, tmp_path / "figures")}
    assert stems == {"dp-fr-tar-1e-4", "dp-fr-tar-1e-5"}


def test_set_leaves_out_public_knowledge(shared_data: Path) -> None:
    """What a set leaves out of public knowledge is the default."""
    grid = EXPERIMENTS["dp-fr"].make_grid(
        {"datasets": ["lfw/mobileface"], "options": {"public": {"mobileface": {"accept": 0.3}}}}
    )
    public = EXPERIMENTS["dp-fr"].load(grid, shared_data)["lfw/mobileface"].public
    assert public.threshold == 0.3
    assert public.score_range == tuple(grid.options["public"]["default"]["range"])


def value_of(rows: list[table.Row], column: str, **wanted: Any) -> float:
    (found,) = {row[column] for row in find_rows(rows, **wanted)}
    return float(found)


class TestRetrieval:
    def test_every_mechanism_answers_promise(self, tmp_path: Path, shared_data: Path) -> None:
        """Every mechanism answers and its promise is true."""
        rows = tiny(
            "dp-rag", tmp_path / "run", shared_data,
            datasets=["scifact"], epsilon=[12], delta=[1e-6], advantage=[0.9], mechanism=list(MECHANISMS),
            options={"queries": 12},
        )  # fmt: skip
        ours = find_rows(rows, setting="contract", metric="recall@10")
        assert {row["mechanism"] for row in ours} == set(MECHANISMS)
        assert all(row["true_epsilon"] <= 12 * (1 + 1e-9) for row in ours)
        assert value(rows, method="staircase, clamped", setting="contract", metric="recall@10") > 0.5
        assert value(rows, method="gaussian", setting="contract", metric="recall@10") < 0.2
        for row in find_rows(rows, setting="advantage", metric="recall@10"):
            if row["mechanism"] == "optimal":  # of whose table only a bound is known beforehand
                assert 0.85 < row["attack_advantage"] <= 0.9
            else:
                assert row["attack_advantage"] == pytest.approx(0.9, abs=1e-6)
        # A private selection names ten records, and matches were cut when they were made.
        assert not find_rows(rows, method="selection", metric="recall@50")
        assert not find_rows(rows, method="screening", metric="recall@20, t=0.35")

    def test_clean_figures_are_the_known_ones(self, tmp_path: Path, shared_data: Path) -> None:
        rows = tiny("dp-rag", tmp_path / "run", shared_data, epsilon=[1], mechanism=[], datasets=["scifact"])
        assert value(rows, setting="clean", metric="recall@10") == pytest.approx(0.783, abs=5e-4)
        assert value(rows, setting="clean", metric="ndcg@10") == pytest.approx(0.6451, abs=5e-5)
        assert value(rows, setting="clean", metric="overlap@10") == 1.0


class TestMatrices:
    def test_the_true_epsilon_of_a_radius(self, tmp_path: Path, shared_data: Path) -> None:
        rows = tiny(
            "gram-vision", tmp_path / "run", shared_data, datasets=["cifar10/32"], epsilon=[3], delta=[1e-5],
            adjacency=[0.5, "record"], projection=["none"], metrics=["auc"], mechanism=["gaussian"],
        )  # fmt: skip
        stretch = 2 * math.sqrt(2 * 31) / 0.5
        for setting, mu in (
            ("paper", calibration.compute_rule_mu(3.0, 1e-5, "conservative")),
            ("contract", calibration.find_mu(3.0, 1e-5)),
        ):
            (row,) = find_rows(rows, setting=setting, radius=0.5)
            assert row["true_epsilon"] == pytest.approx(calibration.find_epsilon(1e-5, mu * stretch), rel=1e-4)
            assert row["attack_advantage"] == pytest.approx(calibration.attack_advantage(mu * stretch), rel=1e-4)
        (row,) = find_rows(rows, setting="contract", radius=None)
        assert row["true_epsilon"] == pytest.approx(3.0, rel=1e-9)
        assert {row["metric"] for row in rows} == {"auc"}

    def test_projections_same_noisy_matrix(self, tmp_path: Path, shared_data: Path) -> None:
        """Projections are of the same noisy matrix."""
        rows = tiny(
            "gram-sts", tmp_path / "run", shared_data, epsilon=[50], delta=[1e-8], adjacency=[2],
            projection=["none", "exact", "aap", "dykstra"], mechanism=["gaussian"], options={"pairs": 30},
        )  # fmt: skip
        errors = {row["method"]: row["value"] for row in find_rows(rows, setting="contract", metric="squared error")}
        assert errors["exact"] == pytest.approx(errors["dykstra"], rel=1e-4)  # two ways to the same point
        assert errors["aap"] == pytest.approx(errors["exact"], rel=0.02)  # which the paper's ends near
        assert errors["aap"] != pytest.approx(errors["exact"], rel=1e-6)
        assert errors["exact"] < errors["noisy"]

    def test_without_similarities_user_gets_mean(self, tmp_path: Path, shared_data: Path) -> None:
        """Without similarities a user gets the mean."""
        rows = tiny(
            "gram-movielens", tmp_path / "run", shared_data, datasets=["ml100k/u1"], epsilon=[1], adjacency=["record"],
            projection=[], mechanism=["index"],
        )  # fmt: skip
        assert value(rows, method="no similarities", metric="rmse") == pytest.approx(1.063, abs=1e-3)
        assert value(rows, method="non-private", metric="rmse") == pytest.approx(0.948, abs=5e-3)
        assert find_rows(rows, method="index")[0]["n"] == 943

    def test_sample_same_every_setting_repeat(self, shared_data: Path) -> None:
        """A sample is the same for every setting of a repeat."""
        experiment = EXPERIMENTS["gram-sts"]
        grid = experiment.make_grid({"options": {"pairs": 40}})
        data = experiment.load(grid, shared_data)
        one = experiment.make_problem(ExperimentCell("stsb", "clean", repeat=1), grid, data)  # type: ignore[attr-defined]
        two = experiment.make_problem(ExperimentCell("stsb", "contract", "index", epsilon=3.0, repeat=1), grid, data)  # type: ignore[attr-defined]
        other = experiment.make_problem(ExperimentCell("stsb", "clean", repeat=2), grid, data)  # type: ignore[attr-defined]
        assert np.array_equal(one.rows, two.rows)
        assert not np.array_equal(one.rows[:10], other.rows[:10])

    def test_samples_different_sizes_repeats(self, tmp_path: Path, shared_data: Path) -> None:
        """Samples of different sizes are repeats of one thing."""
        rows = tiny(
            "gram-sts", tmp_path / "run", shared_data, epsilon=[10, 50], delta=[1e-8], adjacency=[2, "record"],
            projection=["none", "exact"], advantage=[0.9], options={"pairs": 150}, repeats=3, metrics=["spearman"],
        )  # fmt: skip
        sizes = {row["n"] for row in rows}
        assert len(sizes) > 1
        complaints: list[str] = []
        pictures = draw_pictures("gram-sts", rows, tmp_path / "figures", report_omission=complaints.append)
        assert complaints == []
        assert {path.stem for path in pictures} == {
            "gram-sts-stsb-spearman", "gram-sts-stsb-spearman-paper", "gram-sts-stsb-spearman-attack",
        }  # fmt: skip
        assert describe_size(pd.DataFrame(rows)) == f"n ≈ {np.mean([row['n'] for row in rows]):.0f}"
        assert describe_size(pd.DataFrame({"n": [2552, 2552]})) == "n = 2,552"

    def test_the_index_protects_a_record(self, tmp_path: Path, shared_data: Path) -> None:
        rows = tiny(
            "gram-sts", tmp_path / "run", shared_data, epsilon=[20], delta=[1e-6], adjacency=["record"],
            projection=["exact"], options={"pairs": 400}, metrics=["spearman"],
        )  # fmt: skip
        assert value(rows, method="index") > 0.5
        assert abs(value(rows, method="exact")) < 0.25
        assert all(row["true_epsilon"] <= 20 * (1 + 1e-9) for row in rows if row["guarantee"])


class TestSpeed:
    def test_every_projection_timed_input(self, tmp_path: Path) -> None:
        """Every projection is timed on one input."""
        rows = tiny(
            "runtime", tmp_path / "run", None, datasets=["sphere/32"], epsilon=[10], delta=[1e-5], adjacency=[1],
        )  # fmt: skip
        assert {row["method"] for row in rows} == {"newton", "aap", "dykstra", "sdp"}
        for method, most in (("newton", 1e-7), ("dykstra", 1e-5), ("sdp", 1e-4), ("aap", 0.1)):
            assert -1e-9 <= value(rows, method=method, metric="excess distance") < most
        assert value(rows, method="newton", metric="eigendecompositions") < 15

    def test_what_takes_too_long_is_left_out(self, tmp_path: Path) -> None:
        rows = tiny(
            "runtime", tmp_path / "run", None, datasets=["sphere/64"], epsilon=[10], delta=[1e-5], adjacency=[1],
            projection=["sdp"], options={"seconds": 1e-3},
        )  # fmt: skip
        (seconds,) = find_rows(rows, metric="seconds")
        assert seconds["value"] is None
        (unlimited,) = [row for row in rows if row["metric"] == "converged"]
        assert unlimited["value"] == 0

    def test_low_bits_tell_score_through(self, tmp_path: Path) -> None:
        """Reference: 3.4 %, 24 % and 79 % of draws at epsilon 1, 10 and 100, delta 1e-6 (measured for this project)."""
        rows = tiny("noise", tmp_path / "run", None, epsilon=[1, 10, 100], options={"draws": 20_000})
        leaks = [value(rows, method="float gaussian", metric="low-bit leak", epsilon=e) for e in (1, 10, 100)]
        assert leaks == pytest.approx([0.034, 0.24, 0.79], abs=0.03)
        for method in ("gaussian", "laplace", "staircase"):
            assert value(rows, method=method, metric="low-bit leak") == 0
        assert all(row["guarantee"] is None for row in find_rows(rows, method="float gaussian"))

    def test_multiples(self) -> None:
        assert _share_of_multiples(np.array([1.0, 2.0**-53, 2.0**-54, 0.75])) == 0.75


class TestPictures:
    @pytest.mark.parametrize(
        ("changes", "stems"),
        [
            ({"delta": [1e-6, 1e-5]}, ["noise-std"]),
            ({"mechanism": ["laplace"]}, ["noise-std"]),
            ({"metrics": ["low-bit leak"]}, []),
            ({"mechanism": ["float gaussian"]}, []),
        ],
    )
    def test_of_the_noise(self, tmp_path: Path, changes: dict[str, Any], stems: list[str]) -> None:
        rows = tiny("noise", tmp_path / "run", None, **{"epsilon": [1, 10], "options": {"draws": 100}, **changes})
        complaints: list[str] = []
        drawn = draw_pictures("noise", rows, tmp_path / "figures", report_omission=complaints.append)
        assert [path.stem for path in drawn] == stems
        assert complaints == []

    @pytest.mark.parametrize(
        ("mechanisms", "deltas", "caption"),
        [
            (["gaussian"], [1e-6], "Gaussian noise at δ = 10⁻⁶."),
            (["staircase"], [1e-6], "Staircase noise is pure (δ = 0)."),
            (
                ["gaussian", "logistic", "laplace"],
                [1e-6],
                "Gaussian and logistic noise at δ = 10⁻⁶; Laplace noise is pure (δ = 0).",
            ),
            (["gaussian", "laplace"], [1e-6, 1e-5], "Laplace noise is pure (δ = 0)."),
            (["gaussian"], [1e-6, 1e-5], ""),
        ],
    )
    def test_the_caption_names_what_is_drawn(self, mechanisms: list[str], deltas: list[float], caption: str) -> None:
        rows = [
            {"method": name, "metric": "standard deviation", "delta": delta, "setting": "contract", "value": 1.0}
            for name in mechanisms
            for delta in (deltas if name in ("gaussian", "logistic") else [0.0])
        ]
        assert _describe_deltas(pd.DataFrame(rows)) == caption

    def test_a_panel_for_each_delta(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        rows = tiny("noise", tmp_path / "run", None, epsilon=[1], delta=[1e-6, 1e-4], options={"draws": 100})
        kept = []
        monkeypatch.setattr(plots, "save_picture", lambda figure, _: kept.append(figure))
        draw_pictures("noise", rows, tmp_path / "figures")
        (figure,) = kept
        for panel, delta in zip(figure.axes, (1e-6, 1e-4), strict=True):
            lines = {line.get_label(): line.get_ydata() for line in panel.get_lines()}
            for method, at in (("gaussian", delta), ("laplace", 0.0)):
                known = value(rows, method=method, delta=at, metric="standard deviation")
                assert lines[method] == pytest.approx([known])

    def test_of_times_that_were_not_asked_for(self, tmp_path: Path) -> None:
        rows = tiny(
            "runtime", tmp_path / "run", None, datasets=["sphere/32"], epsilon=[10], delta=[1e-5], adjacency=[1],
            projection=["newton"], metrics=["converged"],
        )  # fmt: skip
        assert draw_pictures("runtime", rows, tmp_path / "figures") == []

    def test_of_the_reference_alone(self, tmp_path: Path, shared_data: Path) -> None:
        rows = tiny(
            "dp-rag", tmp_path / "run", shared_data, datasets=["scifact"], delta=[], mechanism=[],
            options={"queries": 3},
        )  # fmt: skip
        assert {row["setting"] for row in rows} == {"clean"}
        assert draw_pictures("dp-rag", rows, tmp_path / "figures") == []

    def test_cannot_drawn_not_stop_others(self, tmp_path: Path) -> None:
        """One that cannot be drawn does not stop the others."""
        rows = tiny(
            "runtime", tmp_path / "run", None, datasets=["sphere/32"], epsilon=[10], delta=[1e-5], adjacency=[1, 2],
            projection=["newton"],
        )  # fmt: skip
        spoilt = [row | ({"value": -1.0} if row["radius"] == 1 else {}) for row in rows]
        complaints: list[str] = []
        drawn = draw_pictures("runtime", spoilt, tmp_path / "figures", report_omission=complaints.append)
        assert [path.stem for path in drawn] == ["runtime-2"]
        (line,) = complaints
        assert line.startswith("runtime-1.png is left out. ")
        assert "\n" not in line


def staircase_advantage(epsilon: float) -> float:
    """Two staircases one sensitivity apart: a factor b on the left half, and b again on the first, short step."""
    b, gamma = math.exp(-epsilon), 1 / (1 + math.exp(epsilon / 2))
    height = (1 - b) / (2 * (gamma + b * (1 - gamma)))
    return (1 - b) * (0.5 + height * gamma)


@pytest.mark.parametrize("mechanism", ["gaussian", "laplace", "staircase", "levels"])
@pytest.mark.parametrize("advantage", [0.01, 0.5, 0.999])
def test_the_epsilon_of_an_advantage(mechanism: str, advantage: float) -> None:
    delta = 1e-6 if mechanism == "gaussian" else 0.0
    cell = ExperimentCell("x", "advantage", mechanism, delta=delta, advantage=advantage)
    epsilon = mechanisms.find_cell_epsilon(cell)
    known = {
        "gaussian": lambda: calibration.attack_advantage(calibration.find_mu(epsilon, delta)),
        "laplace": lambda: 1 - math.exp(-epsilon / 2),
        "staircase": lambda: staircase_advantage(epsilon),
        "levels": lambda: math.tanh(epsilon / 2),
    }
    assert known[mechanism]() == pytest.approx(advantage, rel=1e-6)


def test_facts_of_a_projection_are_kept(tmp_path: Path, shared_data: Path) -> None:
    rows = tiny(
        "gram-vision", tmp_path / "run", shared_data, datasets=["cifar10/32"], epsilon=[10], delta=[1e-5],
        adjacency=["record"], projection=["aap"], mechanism=["gaussian"], options={"aap_iterations": 3},
        metrics=["auc"],
    )  # fmt: skip
    (row,) = find_rows(rows, method="aap")
    assert json.loads(row["facts"]) == {"iterations": 3, "converged": False, "denoise": "projection"}
