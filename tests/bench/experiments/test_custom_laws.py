"""Noise laws of the caller in experiments: compared beside the others, each value with its certificate."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from custom_law_makers import make_logistic, make_nothing, make_too_little, make_wider_logistic

import scoreshield as ss
from scoreshield.bench.experiments import EXPERIMENTS, run_experiment

NOISE, FACES = EXPERIMENTS["noise"], EXPERIMENTS["dp-fr"]


SMALL = {"epsilon": [2, 5], "mechanism": ["laplace", "logistic"], "repeats": 1, "options": {"draws": 500}}


def test_custom_law_is_compared_with_the_others(tmp_path: Path) -> None:
    experiment = NOISE.add_laws({"logistic": make_logistic})
    rows = run_experiment(experiment, experiment.make_grid(SMALL), tmp_path / "run")
    found = {(row["mechanism"], row["epsilon"]): row for row in rows if row["metric"] == "standard deviation"}
    assert set(found) == {(name, epsilon) for name in ("laplace", "logistic") for epsilon in (2.0, 5.0)}
    row = found["logistic", 2.0]
    assert row["value"] == pytest.approx(math.pi / math.sqrt(3), rel=0.01)
    guarantee = ss.Guarantee.from_dict(json.loads(row["guarantee"]))
    assert (guarantee.mechanism, guarantee.details["law"]) == ("custom", "logistic")
    assert row["true_delta"] <= row["delta"] == 1e-6
    assert row["method"] == "logistic"


def test_custom_law_in_the_tables_of_faces(tmp_path: Path) -> None:
    experiment = FACES.add_laws({"logistic": make_logistic})
    changes = {
        "datasets": ["synthetic/gaussian"] if "synthetic/gaussian" in _list_sets() else [_list_sets()[0]],
        "epsilon": [20],
        "advantage": [0.5],
        "mechanism": ["laplace", "logistic"],
        "repeats": 1,
        "options": {"scores_per_side": 200},
    }
    rows = run_experiment(experiment, experiment.make_grid(changes), tmp_path / "run", workers=1)
    of_law = [row for row in rows if row["mechanism"] == "logistic"]
    assert {row["setting"] for row in of_law} == {"contract"}  # a law is made for a contract
    assert 0.5 < next(row["value"] for row in of_law if row["metric"] == "auc") <= 1


def _list_sets() -> list[str]:
    choices = FACES.list_choices(FACES.read_base_grid())
    return [name for name in choices.datasets if name.startswith("synthetic/")]


def test_run_is_not_resumed_with_another_law_of_the_same_name(tmp_path: Path) -> None:
    for make, fits in ((make_logistic, True), (make_logistic, True), (make_wider_logistic, False)):
        experiment = NOISE.add_laws({"logistic": make})
        if fits:
            run_experiment(experiment, experiment.make_grid(SMALL), tmp_path / "run")
            continue
        with pytest.raises(ss.InvalidInput, match="laws"):
            run_experiment(experiment, experiment.make_grid(SMALL), tmp_path / "run")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (make_too_little, "has delta .* at epsilon 2, more than the 1e-06 of the grid"),
        (make_nothing, "must return a CustomNoise. Got a tuple"),
    ],
)
def test_law_that_does_not_keep_the_contract_stops_the_run_before_it_starts(
    make: Any, message: str, tmp_path: Path
) -> None:
    experiment = NOISE.add_laws({"logistic": make})
    with pytest.raises(ss.InvalidInput, match=message):
        run_experiment(experiment, experiment.make_grid(SMALL), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_bad_laws_raise_one_sentence() -> None:
    with pytest.raises(ss.InvalidInput, match="has a mechanism 'laplace' already"):
        NOISE.add_laws({"laplace": make_logistic})
    with pytest.raises(ss.InvalidInput, match="must be a function"):
        NOISE.add_laws({"logistic": 3})  # type: ignore[dict-item]
    with pytest.raises(ss.InvalidInput, match="defined in a module"):
        NOISE.add_laws({"logistic": lambda epsilon, delta: make_logistic(epsilon, delta)})
    with pytest.raises(ss.InvalidInput, match="printable"):
        NOISE.add_laws({"": make_logistic})
    with pytest.raises(ss.InvalidInput, match="gram-sts releases no scores of one query"):
        EXPERIMENTS["gram-sts"].add_laws({"logistic": make_logistic})
    with pytest.raises(ss.InvalidInput, match="unknown mechanism 'logistic'"):
        NOISE.make_grid(SMALL)  # the experiment itself is not changed


def test_command_takes_a_law(tmp_path: Path) -> None:
    (tmp_path / "mylaws.py").write_text(
        "import scipy.stats\nimport scoreshield as ss\n\n\n"
        "def make_logistic(epsilon, delta):\n"
        "    return ss.CustomNoise.tabulate(scipy.stats.logistic(scale=2.0001 / epsilon))\n"
    )
    (tmp_path / "grid.yaml").write_text(
        "epsilon: [5]\nmechanism: [staircase, logistic]\nrepeats: 1\noptions: {draws: 200}\n"
    )
    command = [sys.executable, "-m", "scoreshield.cli", "bench", "noise", "--grid", "grid.yaml", "--json"]
    done = subprocess.run(
        [*command, "--law", "logistic=mylaws:make_logistic"], capture_output=True, text=True, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["rows"] == 8
    bad = subprocess.run([*command, "--law", "logistic"], capture_output=True, text=True, cwd=tmp_path, check=False)
    assert bad.returncode == 2
    assert "NAME=module:function" in bad.stderr
