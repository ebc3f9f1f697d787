"""The results page says what the rows say, shows both truths, and is made from whatever runs there are."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

import scoreshield as ss
from scoreshield.experiments import EXPERIMENTS, run, table
from scoreshield.report import results
from scoreshield.report.result_runs import read
from scoreshield.report.result_tables import attack_table, gram_table, score_table

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
        run(EXPERIMENTS[name], EXPERIMENTS[name].grid(TINY[name] | {"repeats": 1}), folder / name)
    return folder


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, shared_data: Path) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for name, changes in TINY.items():
        grid = EXPERIMENTS[name].grid(changes | {"repeats": 2})
        run(EXPERIMENTS[name], grid, folder / name, data_dir=shared_data, workers=1)
    return folder


def made(runs: Path, out: Path, data: Path | None = None) -> tuple[str, str]:
    results.make(runs, markdown=out / "results.md", html=out / "results.html", images=out / "images", data_dir=data)
    return (out / "results.md").read_text("utf-8"), (out / "results.html").read_text("utf-8")


def test_a_page_of_the_runs_there_are(small: Path, tmp_path: Path) -> None:
    markdown, html = made(small, tmp_path)
    assert "Not run for this page: `scoreshield bench dp-fr`" in markdown
    assert "no mechanism can change that" in markdown
    assert html.count("<img") == markdown.count("![") == 2
    for path in re.findall(r"!\[[^\]]*\]\(([^)]*)\)", markdown):
        assert (tmp_path / path).is_file()


def test_the_whole_page(whole: Path, tmp_path: Path, shared_data: Path) -> None:
    markdown, html = made(whole, tmp_path, shared_data)
    again, _ = made(whole, tmp_path / "again", shared_data)
    assert again == markdown  # nothing in it but what the runs say
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


def test_numbers_in_the_text_are_those_of_the_rows(whole: Path) -> None:
    page = results.compose(read(whole))
    rows = table.read(whole / "dp-fr" / "results.csv")
    paper = [row["value"] for row in table.where(rows, setting="paper", epsilon=5, metric="accuracy")]
    (faces,) = [section for section in page.sections if section.title == "Face verification"]
    assert f"decides {sum(paper) / len(paper):.3f} of the pairs rightly" in faces.pictures[0].reading
    title, text = page.negatives[1]
    sts = table.where(table.read(whole / "gram-sts" / "results.csv"), setting="paper", metric="spearman")
    noisy, aap = ([row["value"] for row in sts if row["method"] == name] for name in ("noisy (paper)", "aap (paper)"))
    exact = [row["value"] for row in sts if row["method"].startswith("exact")]
    assert f"{sum(noisy) / len(noisy):.3f} for the noisy matrix" in text
    helps = max(sum(aap), sum(exact)) > sum(noisy)
    assert ("raises" in title) == helps  # the headline follows the numbers


def test_commands_name_the_grid_that_was_run(small: Path, tmp_path: Path) -> None:
    assert read(small)["noise"].command == "scoreshield bench noise --grid GRID.yaml --out runs/noise"
    experiment = EXPERIMENTS["noise"]
    grid = experiment.grid({"options": {"draws": 500}}, quick=True)
    run(experiment, grid, tmp_path / "noise")
    settings = (tmp_path / "noise" / "settings.json").read_text()
    assert '"draws": 500' in settings
    (tmp_path / "noise" / "settings.json").write_text(settings.replace('"draws": 500', '"draws": 250000'))
    assert read(tmp_path)["noise"].command == "scoreshield bench noise --quick --out runs/noise"


def test_no_runs_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ss.InvalidInput, match="no finished run under"):
        made(tmp_path, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def rows_of(values: dict[tuple[str, str, float], list[float | None]], **more: Any) -> list[dict[str, Any]]:
    return [
        {
            "setting": setting, "method": method, "epsilon": epsilon, "value": value, "better": "higher",
            "radius": None,
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
    made = score_table(rows, ("gaussian", "staircase"), caption="c", command="x", ceiling=("most", lambda e: e / 4))
    assert list(made.header) == ["", "ε = 1", "ε = 2"]
    assert [list(row) for row in made.rows] == [
        ["non-private", "0.900 ± 0.000", "0.900 ± 0.000"],
        ["the paper's Gaussian, as published", "0.200 ± 0.141", "·"],
        ["its true ε when one record is replaced", "2", "·"],
        ["its true δ at the claimed ε", "0.5", "·"],
        ["gaussian, δ = 10⁻⁴", "0.300 ± 0.141", "·"],
        ["staircase, pure", "0.500 ± 0.000", "—"],
        ["attack advantage, gaussian", "0.25", "·"],
        ["attack advantage, pure", "0.25", "0.25"],
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
    made = gram_table(rows, ("aap (paper)", "exact", "index"), caption="c", command="x")
    assert [row[0] for row in made.rows] == [
        "non-private",
        "as published, radius 2.0: aap, δ = 10⁻⁸",
        "as published, radius 2.0: true ε when one record is replaced",
        "radius 2.0: exact, δ = 10⁻⁸",
        "radius 2.0: true ε when one record is replaced",
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
    ]
    made = attack_table(rows, ("gaussian", "laplace", "staircase"), caption="c", command="x")
    assert [list(row) for row in made.rows][1:] == [
        ["gaussian, δ = 10⁻⁴", "0.700"],
        ["laplace, pure", "0.600"],
        ["staircase, pure", "0.500"],
        ["ε of Gaussian noise", "8"],
        ["ε of Laplace noise", "1.4"],
        ["ε of the other pure ones", "1.1"],
    ]
