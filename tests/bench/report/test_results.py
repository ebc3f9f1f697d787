"""The results page says what the rows say, shows both truths, and is made from whatever runs there are."""

from __future__ import annotations

import dataclasses
import math
import re
import statistics
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from support import find_rows

import scoreshield as ss
from scoreshield.bench.experiments import EXPERIMENTS, run_experiment, table
from scoreshield.bench.report import pictures, results
from scoreshield.bench.report.frames import drop_gap, select_rows
from scoreshield.bench.report.negatives import list_negatives
from scoreshield.bench.report.results import build_runtime, compose_results_page, make_results_page
from scoreshield.bench.report.results_page import render_markdown
from scoreshield.bench.report.runs import Run, read_runs, summarise_environment
from scoreshield.bench.report.tables import (
    beats_reference,
    build_attack_table,
    build_gram_table,
    build_score_table,
    find_references,
)
from scoreshield.report import plots

TINY: dict[str, dict[str, Any]] = {
    "dp-fr": {"datasets": ["lfw/faceres_centred"], "epsilon": [1, 5], "delta": [1e-4], "advantage": [0.5],
              "metrics": ["accuracy", "tar@1e-2"]},
    "dp-rag": {"datasets": ["scifact"], "epsilon": [5, 10], "advantage": [0.9], "options": {"queries": 4},
               "metrics": ["recall@10", "recall@50", "recall@10, t=0.25"]},
    "gram-sts": {"epsilon": [10, 100], "delta": [1e-8], "adjacency": [2, "record"], "advantage": [0.9],
                 "options": {"pairs": 25, "aap_iterations": 20}},
    "gram-movielens": {"datasets": ["ml100k/u1"], "epsilon": [10], "delta": [1e-8], "adjacency": [2, "record"],
                       "advantage": [0.9], "options": {"users": 40, "aap_iterations": 20}},
    "gram-vision": {"datasets": ["cifar10/32"], "epsilon": [10], "delta": [1e-8], "adjacency": [2, "record"],
                    "advantage": [0.9], "metrics": ["auc", "nmi"], "options": {"aap_iterations": 20}},
    "runtime": {"datasets": ["sphere/32"], "epsilon": [10], "delta": [1e-8], "adjacency": [2]},
    "noise": {"epsilon": [1, 10], "options": {"draws": 500}},
}  # fmt: skip


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What needs no data."""
    folder = tmp_path_factory.mktemp("small")
    for name in ("runtime", "noise"):
        run_experiment(EXPERIMENTS[name], EXPERIMENTS[name].make_grid(TINY[name] | {"repeats": 1}), folder / name)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for name, changes in TINY.items():
        grid = EXPERIMENTS[name].make_grid(changes | {"repeats": 2})
        run_experiment(EXPERIMENTS[name], grid, folder / name, data_dir=shared_data, workers=1)
    return folder


def made(runs: Path, out: Path, data: Path | None = None) -> tuple[str, str]:
    make_results_page(
        runs, markdown=out / "results.md", html=out / "results.html", images=out / "images", data_dir=data
    )
    pages = [out / "results.md", *sorted((out / "results").glob("*.md"))]
    return "\n".join(path.read_text("utf-8") for path in pages), (out / "results.html").read_text("utf-8")


def test_a_page_of_the_runs_there_are(small: Path, tmp_path: Path) -> None:
    markdown, html = made(small, tmp_path)
    assert "Not run for this page: `scoreshield bench dp-fr`" in markdown
    assert "no mechanism can change that" in markdown
    assert html.count("<img") == markdown.count("![") == 2
    for path in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", markdown):
        assert (tmp_path / "results" / path).is_file()
    assert markdown.startswith("# The evidence\n\nThis page measures what private similarity scores")
    opening = "and each step up reveals more.\n\nAt ε = 1 almost nothing"
    assert opening in markdown, "no search and no faces were run"


def test_the_whole_page(whole: Path, tmp_path: Path, shared_data: Path) -> None:
    markdown, html = made(whole, tmp_path, shared_data)
    assert "Not run" not in markdown
    for title in (
        "What the paper promises, and what is true", "Face verification", "Operating points",
        "Retrieval for generation",
        "Sentence similarity", "Recommendation", "Images", "Time of the projections", "The noise itself",
    ):  # fmt: skip
        assert f"## {title}" in markdown
        assert title in html
    assert "Scope of the guarantee" in markdown
    assert markdown.count("true ε when one record is replaced") >= 8
    assert "lfw-shift-against-scale.png" in markdown
    assert 'src="data:image/png' in html
    assert " nan" not in markdown.lower()


def test_runs_determine_the_page(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is on the page but what the runs say: a second time it is the same."""
    runs = undrawn(whole, monkeypatch)
    first, second = (
        render_markdown(compose_results_page(some), image_folder="images", name="results.md")
        for some in (runs, read_runs(whole))
    )
    assert first == second


def test_numbers_text_rows(whole: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers in the text are those of the rows."""
    page = compose_results_page(undrawn(whole, monkeypatch))
    rows = table.read_results(whole / "dp-fr" / "results.csv")
    paper = [row["value"] for row in find_rows(rows, setting="paper", epsilon=5, metric="accuracy")]
    (faces,) = [section for section in page.sections if section.title == "Face verification"]
    mean, sd = statistics.mean(paper), statistics.stdev(paper)
    assert f"the paper's mechanism {mean:.3f} ± {sd:.3f}" in faces.pictures[0].reading
    ours = find_rows(rows, setting="contract", epsilon=5, metric="accuracy", method="levels")
    best = statistics.mean(row["value"] for row in ours)
    message = f"best mechanism here, levels, has accuracy {best:.3f} ± "
    assert message in page.lead
    opening = page.lead.partition("**")[0]
    assert "Noise hides each single record." in opening, "plain words come before names and figures"
    assert not re.search(r"[1-9]|recall|advantage|mechanism", opening)
    clean = [row["value"] for row in find_rows(rows, setting="clean", metric="accuracy", dataset=ours[0]["dataset"])]
    kept = (best - 0.5) / (statistics.mean(clean) - 0.5)
    part = "nearly all" if kept >= 0.9 else "a large part" if kept >= 0.5 else "a small part"
    assert f"The best mechanism keeps {part} of what the scores are worth without privacy. An" in page.lead
    assert f"The best attacker has an advantage of {ours[0]['attack_advantage']:.4g}." in page.lead
    (text,) = [text for title, text in page.negatives if "STS-B correlation" in title]
    sts = find_rows(table.read_results(whole / "gram-sts" / "results.csv"), setting="paper", metric="spearman")
    noisy, aap = ([row["value"] for row in sts if row["method"] == name] for name in ("noisy (paper)", "aap (paper)"))
    paired = [after - before for after, before in zip(aap, noisy, strict=True)]
    assert f"{statistics.mean(paired):+.3f} ± {statistics.stdev(paired):.3f} with the paper's projection" in text
    assert "Sizes: stsb: n = " in page.sections[3].intro
    assert "25 of 1,379 pairs. 2 repeats with a fresh sample" in page.sections[3].intro
    assert "2 repeats with fresh noise on the same records" in faces.intro
    truths = page.sections[0].pictures[0]
    assert [line.split()[2] for line in truths.command.splitlines()] == [
        "dp-fr", "dp-rag", "gram-sts", "gram-movielens", "gram-vision",
    ]  # fmt: skip


COLUMNS = ("metric", "setting", "method", "radius")


def group_values(values: list[object]) -> list[list[object]]:
    """Group many values, each in two groups with different others; few values are left out one by one."""
    if len(values) <= 8:
        return [[value] for value in values]
    size = math.isqrt(len(values) - 1) + 1
    rows = [values[start : start + size] for start in range(0, len(values), size)]
    return rows + [values[start::size] for start in range(size)]


def partial_runs(runs: dict[str, Run], column: str, values: list[object]) -> dict[str, Run]:
    kept = {name: run.rows.drop(select_rows(run.rows, **{column: values}).index) for name, run in runs.items()}
    return {name: dataclasses.replace(runs[name], rows=rows) for name, rows in kept.items() if not rows.empty}


@pytest.mark.parametrize("column", COLUMNS)
def test_a_page_of_what_is_left(whole: Path, column: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever one thing was not run, the page has no gap in its sentences."""
    runs = undrawn(whole, monkeypatch)
    values = dict.fromkeys(drop_gap(value) for run in runs.values() for value in run.rows[column].unique())
    assert len(values) > 1
    for several in group_values(list(values)):
        left = partial_runs(runs, column, several)
        texts = render_markdown(compose_results_page(left), image_folder="images", name="results.md")
        text = "\n".join(texts.values())
        assert not re.search(r"\bnan\b|\bNone\b|\{\}| {2,}[a-z]|: \.|, ,", text), (column, several)


def undrawn(folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    """The runs as if all pictures were drawn, which takes long, so that each reading is written."""

    def list_paths(name: str, rows: pd.DataFrame, figures: Path) -> list[Path]:
        return [figures / f"{stem}.png" for stem, _ in pictures.plan_pictures(name, rows)]

    monkeypatch.setattr(results, "draw_true_epsilons", lambda _: None)
    monkeypatch.setattr(plots, "save_picture", lambda *_, **__: None)
    monkeypatch.setattr(pictures, "draw_pictures", list_paths)
    return read_runs(folder)


def test_commands_name_the_grid_that_was_run(small: Path, tmp_path: Path) -> None:
    assert read_runs(small)["noise"].command == "scoreshield bench noise --grid GRID.yaml --out runs/noise"
    experiment = EXPERIMENTS["noise"]
    grid = experiment.make_grid({"options": {"draws": 500}}, quick=True)
    run_experiment(experiment, grid, tmp_path / "noise")
    settings = (tmp_path / "noise" / "settings.json").read_text()
    assert '"draws": 500' in settings
    (tmp_path / "noise" / "settings.json").write_text(settings.replace('"draws": 500', '"draws": 250000'))
    assert read_runs(tmp_path)["noise"].command == "scoreshield bench noise --quick --out runs/noise"


def test_no_runs_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match="no finished run under"):
        made(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def rows_of(values: dict[tuple[str, str, float], list[float | None]], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "setting": setting, "method": method, "epsilon": epsilon, "value": value, "better": "higher",
            "radius": None, "dataset": "d", "metric": "auc",
            "delta": 1e-4 if "gaussian" in method else 0.0, "true_epsilon": 2 * epsilon,
            "true_delta": 0.5,
            "attack_advantage": 0.25, "target_advantage": None, "repeat": repeat, "n": 10, **more,
        }
        for (setting, method, epsilon), several in values.items()
        for repeat, value in enumerate(several)
    ]  # fmt: skip


def test_a_score_table_by_hand() -> None:
    rows = rows_of(
        {
            ("clean", "non-private", 1.0): [0.9, 0.9],
            ("paper", "gaussian (paper)", 1.0): [0.1, 0.3],
            ("contract", "gaussian", 1.0): [0.2, 0.4],
            ("contract", "staircase", 1.0): [0.5, 0.5],
            ("contract", "staircase", 2.0): [None, None],
        }
    )
    (made,) = build_score_table(
        pd.DataFrame(rows), ("gaussian", "staircase"), caption="c", command="x", ceiling=("most", lambda e: e / 4)
    )
    assert list(made.header) == ["", "ε = 1", "ε = 2"]
    assert [list(row) for row in made.rows] == [
        ["non-private", "0.900 ± 0.000", "0.900 ± 0.000"],
        ["the paper's Gaussian, as published", "0.200 ± 0.141", "·"],
        ["its true ε when one record is replaced", "2", "·"],
        ["its true δ at the claimed ε", "0.5", "·"],
        ["gaussian, δ = 10⁻⁴", "0.300 ± 0.141", "·"],
        ["staircase, pure", "0.500 ± 0.000", "—"],
        ["attack advantage of gaussian", "0.25", "·"],
        ["attack advantage of staircase", "0.25", "0.25"],
        ["most", "0.250", "0.500"],
    ]
    assert made.reference == [0, 1, 2, 3, 6, 7, 8]  # what is not private, or not measured, does not compete


def test_a_gram_table_keeps_promises_apart() -> None:
    rows = [
        *rows_of({("clean", "non-private", 1.0): [0.8]}),
        *rows_of({("paper", "aap (paper)", 1.0): [0.7]}, radius=2.0, delta=1e-8),
        *rows_of({("contract", "exact", 1.0): [0.6]}, radius=2.0, delta=1e-8),
        *rows_of({("contract", "exact", 1.0): [0.1]}, delta=1e-8),
        *rows_of({("contract", "index", 1.0): [0.5]}),
    ]
    (made,) = build_gram_table(pd.DataFrame(rows), ("aap (paper)", "exact", "index"), caption="c", command="x")
    assert [row[0] for row in made.rows] == [
        "non-private",
        "as published, radius 2: aap, δ = 10⁻⁸",
        "as published, radius 2: true ε when one record is replaced",
        "radius 2: exact, δ = 10⁻⁸",
        "radius 2: true ε when one record is replaced",
        "one record: exact, δ = 10⁻⁸",
        "one record: index, pure",
    ]
    assert made.reference == [0, 1, 2, 3, 4]  # only what protects a record competes


def test_an_attack_table_tells_the_epsilons() -> None:
    rows = [
        *rows_of({("clean", "non-private", 1.0): [0.8]}),
        *rows_of({("advantage", "gaussian", 8.0): [0.7]}, target_advantage=0.5),
        *rows_of({("advantage", "laplace", 1.4): [0.6]}, target_advantage=0.5),
        *rows_of({("advantage", "staircase", 1.1): [0.5]}, target_advantage=0.5),
        *rows_of({("advantage", "levels", 1.1): [0.5]}, target_advantage=0.5),
    ]
    (made,) = build_attack_table(
        pd.DataFrame(rows), ("gaussian", "laplace", "staircase", "levels"), caption="c", command="x"
    )
    assert [list(row) for row in made.rows][1:] == [
        ["gaussian, δ = 10⁻⁴", "0.700"],
        ["laplace, pure", "0.600"],
        ["staircase, pure", "0.500"],
        ["levels, pure", "0.500"],
        ["ε of gaussian", "8"],
        ["ε of laplace", "1.4"],
        ["ε of staircase / levels", "1.1"],
    ]


def test_does_clear_reference_best() -> None:
    """What does not clear the reference is not best."""
    rows = [
        *rows_of({("clean", "no similarities", 1.0): [0.2, 0.6]}),
        *rows_of({("clean", "equal similarities", 1.0): [0.3, 0.5]}),
        *rows_of({("contract", "index", 1.0): [0.35, 0.65]}),  # ahead by 0.05 in each repeat, of 0.3 and 0.6
        *rows_of({("contract", "exact", 1.0): [0.2, 0.9]}),  # ahead by 0.1 on average, -0.1 and 0.3
        *rows_of({("contract", "noisy", 1.0): [0.9, None]}),  # once: no spread is known
    ]
    frame = pd.DataFrame(rows)
    references = find_references(frame)
    assert references[select_rows(frame, method="index").index].tolist() == [0.3, 0.6]
    assert beats_reference(select_rows(frame, method="index"), references)
    assert not beats_reference(select_rows(frame, method="exact"), references)
    assert not beats_reference(select_rows(frame, method="noisy"), references)
    (made,) = build_gram_table(pd.DataFrame(rows), ("index", "exact", "noisy"), caption="c", command="x")
    assert [row[0] for row in made.rows][:2] == ["no similarities", "equal similarities"]
    assert made.reference == [0, 1]
    assert made.unclear == [(3, 1), (4, 1)]


@pytest.mark.parametrize(
    ("metric", "better", "values", "clear"),
    [
        ("accuracy", "higher", [0.51, 0.53], True),
        ("accuracy", "higher", [0.49, 0.53], False),
        ("eer", "lower", [0.4, 0.42], True),
        ("tar@1e-2", "higher", [0.009, 0.012], False),
        ("recall@10, t=0.25", "higher", [0.11, 0.12], True),  # 10 of 100
        ("recall@10", "higher", [0.05, 0.06], False),
        ("ndcg@10", "higher", [0.0, 0.0], True),  # nothing is known of a guess
    ],
)
def test_scores_have_to_beat_a_guess(metric: str, better: str, values: list[float | None], clear: bool) -> None:
    rows = rows_of({("contract", "staircase", 1.0): values}, metric=metric, better=better, n=100)
    frame = pd.DataFrame(rows)
    assert beats_reference(frame, find_references(frame)) is clear


def run_of(rows: list[dict[str, Any]], name: str = "dp-fr", **more: Any) -> Run:
    return Run(name, Path("runs"), pd.DataFrame(rows), {}, f"scoreshield bench {name}", **more)


def test_one_delta_for_tables_and_text() -> None:
    rows = [
        *rows_of({("contract", "gaussian", 1.0): [0.9]}, delta=1e-2),
        *rows_of({("contract", "gaussian", 1.0): [0.5]}, delta=1e-7),
        *rows_of({("contract", "staircase", 1.0): [0.6]}),
        *rows_of({("advantage", "gaussian", 1.0): [0.7]}, delta=1e-2, target_advantage=0.5),
    ]
    run = run_of(rows)
    assert run.promise == "δ = 10⁻⁷ or 0"
    assert run.compute_mean(method="gaussian", setting="contract") == 0.5
    assert run.compute_mean(method="staircase") == 0.6
    assert run.compute_mean(setting="advantage") == 0.7
    assert run_of(rows_of({("contract", "staircase", 1.0): [0.6]})).promise == "δ = 0"


def test_equal_attack_names_best_both() -> None:
    """Equal attack names the best and both gaussians near nine tenths."""
    rows = []
    for advantage, shift in ((0.5, 0.0), (0.85, 0.1), (0.99, 0.2)):
        for method, value in (("levels", 0.7), ("gaussian", 0.5), ("gaussian, clamped", 0.6)):
            rows += rows_of({("advantage", method, 1.0): [value + shift] * 2}, target_advantage=advantage)
    assert run_of(rows).describe_equal_attack("d", "auc") == (
        "d at advantage 0.85: levels is best with 0.800 ± 0.000, gaussian, clamped gives 0.700 ± 0.000, gaussian gives "
        "0.600 ± 0.000."
    )
    assert run_of(rows).describe_equal_attack("d", "eer") == ""


def test_sizes_and_places_are_said() -> None:
    rows = rows_of({("contract", "exact", 1.0): [0.5, 0.6]}, dataset="stsb")
    rows[1]["n"] = 12
    some = run_of(rows, settings={"options": {"pairs": 5}})
    assert some.describe_sizes().startswith(
        "Sizes: stsb: n = 10 to 12, 5 of 1,379 pairs. 2 repeats with a fresh sample"
    )
    every = run_of(rows, settings={"options": {"pairs": 1379}})
    assert every.describe_sizes().endswith("± is one standard deviation over the noise alone.")
    assert run_of(rows[:1]).describe_sizes() == "Sizes: stsb: n = 10. One repeat, so no spread is known."
    there = run_of([row | {"python": "3.12", "cores": 8} for row in rows], "noise")
    here = run_of([row | {"python": "3.11", "cores": 8} for row in rows])
    assert summarise_environment({"dp-fr": here, "noise": there}) == {
        "python": "3.11 (dp-fr); 3.12 (noise)",
        "cores": "8",
    }


@pytest.mark.parametrize(
    ("after", "said"),
    [([0.4, 0.6], "helps"), ([0.2, 0.4], "lowers"), ([0.2, 0.7], "does not help")],
)
def test_projection_judged_paired(after: list[float | None], said: str) -> None:
    """Projection is judged by paired differences."""
    rows = [
        *rows_of({("paper", "noisy (paper)", 1.0): [0.3, 0.5]}, radius=2.0, metric="spearman"),
        *rows_of({("paper", "aap (paper)", 1.0): after}, radius=2.0, metric="spearman"),
    ]
    title, _ = list_negatives({"gram-sts": run_of(rows)})[1]
    assert title == f"Projection {said} the STS-B correlation"


@pytest.mark.parametrize(("index", "told"), [([1.0, 1.1], True), ([0.9, 0.95], False), ([0.9, 1.2], True)])
def test_movielens_without_similarities(index: list[float | None], told: bool) -> None:
    """Movielens without similarities is told while true."""
    like = {"metric": "rmse", "better": "lower", "dataset": "ml100k/u1"}
    rows = [
        *rows_of({("clean", "no similarities", 1.0): [1.1, 1.2]}, **like),
        *rows_of({("clean", "equal similarities", 1.0): [0.97, 0.99]}, **like),
        *rows_of({("contract", "index", 5.0): index}, **like),
        *rows_of({("contract", "exact", 9.0): [0.5, 0.5]}, **(like | {"radius": 2.0})),  # no promise to a record
    ]
    found = list_negatives({"gram-movielens": run_of(rows)})
    assert any(title.startswith("On MovieLens") for title, _ in found) == told
    if told:
        assert "0.980 ± 0.014 with all similarities taken as equal" in found[1][1]


def test_the_equal_attack_of_one_data_set() -> None:
    rows = []
    for dataset, value in (("scifact", 0.1), ("frames", 0.5)):
        like = {"dataset": dataset, "metric": "recall@10", "target_advantage": 0.5}
        rows += rows_of({("advantage", "screening", 1.0): [value, value + 0.02]}, **like)
        rows += rows_of({("contract", "screening", 10.0): [value]}, **(like | {"attack_advantage": 0.9}))
        rows += rows_of({("contract", "gaussian", 10.0): [value]}, **(like | {"attack_advantage": 0.6}))
    _, (title, text) = list_negatives({"dp-rag": run_of(rows)})
    assert title.endswith("for the mechanisms of this experiment")
    assert "scifact: at an attack advantage of 0.5 the best recall@10 is 0.110 ± 0.014 (screening)" in text
    assert "0.9 to 0.9 against pure mechanisms, and of 0.6 against Gaussian noise at δ = 10⁻⁴" in text


def test_each_runtime_picture_has_its_own_reading() -> None:
    rows = []
    for radius, slow in ((2.0, 5.0), (None, 7.0)):
        for epsilon in (1.0, 10.0):
            for method, seconds, done in (("newton", 0.1, 1.0), ("aap", slow, float(radius == 2.0))):
                for metric, value in (("seconds", seconds * epsilon), ("converged", done)):
                    rows += rows_of({("contract", method, epsilon): [value]}, radius=radius, metric=metric, delta=1e-8)
    drawn = {name: Path(f"{name}.png") for name in ("runtime-2", "runtime-record")}
    section = build_runtime(dataclasses.replace(run_of(rows, "runtime"), pictures=drawn))
    assert [picture.reading for picture in section.pictures] == [
        "Noise for radius 2 at ε = 10, δ = 10⁻⁸, n = 10: newton 1 s (converged), aap 50 s (50 times as long as newton; "
        "converged). The bars are means over all budgets of the run.",
        "Noise for one record at ε = 10, δ = 10⁻⁸, n = 10: newton 1 s (converged), aap 70 s (70 times as long as "
        "newton; stopped before it converged). The bars are means over all budgets of the run.",
    ]


def test_names_table_from_elsewhere_plain(small: Path, tmp_path: Path) -> None:
    """No link, picture, script or formula of a chart: whoever wrote the table does not write the page."""
    links = "[log in](https://evil.example) ![x](https://evil.example/p.png) www.evil.example"
    evil = f"{links} <script>alert(1)</script> $\\frac$"
    for name in ("runtime", "noise"):
        rows = table.read_results(small / name / "results.csv")
        hostile = [
            row | {"processor": evil, "machine": "\x1b[2J" + evil, "dataset": f"{row['dataset']}{evil}"} for row in rows
        ]
        (tmp_path / "runs" / name).mkdir(parents=True)
        table.write_results(tmp_path / "runs" / name, hostile)
    for page in made(tmp_path / "runs", tmp_path):
        assert "evil.example" in page
        for mark in ("](https://evil", "://evil", "www.evil", "<script>alert", "\x1b"):
            assert mark not in page
