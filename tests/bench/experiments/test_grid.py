"""A grid is checked whole before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest

import scoreshield as ss
from scoreshield.bench.experiments import EXPERIMENTS
from scoreshield.bench.experiments.grid import parse_yaml, read_yaml
from scoreshield.bench.experiments.mechanisms import find_cell_epsilon

VISION = EXPERIMENTS["gram-vision"]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_shipped_grid_sound_quick_part(name: str) -> None:
    """Every shipped grid is sound and its quick part smaller."""
    experiment = EXPERIMENTS[name]
    whole, quick = experiment.make_grid(), experiment.make_grid(quick=True)
    assert whole.experiment == quick.experiment == name
    assert 0 < len(experiment.list_cells(quick)) < len(experiment.list_cells(whole))
    keys = [cell.key for cell in experiment.list_cells(whole)]
    assert len(set(keys)) == len(keys)


def test_file_changes_names_nothing_else() -> None:
    """A file changes what it names and nothing else."""
    grid = VISION.make_grid({"epsilon": [3, "1e-1"], "repeats": 2, "options": {"aap_iterations": 7}})
    assert grid.epsilon == (3.0, 0.1)
    assert grid.repeats == 2
    assert grid.options == {"aap_iterations": 7, "device": "cpu"}
    assert grid.delta == VISION.make_grid().delta


def test_quick_part_file_counts_only_when() -> None:
    """The quick part of a file counts only when asked for."""
    changes = {"epsilon": [5], "quick": {"epsilon": [7]}}
    assert VISION.make_grid(changes).epsilon == (5.0,)
    assert VISION.make_grid(changes, quick=True).epsilon == (7.0,)
    assert VISION.make_grid({"epsilon": [5]}, quick=True).epsilon == (5.0,)  # which outweighs the quick grid that ships


def test_numbers_without_a_point_are_numbers(tmp_path: Path) -> None:
    """YAML 1.1 takes 1e-8 for text; people do not."""
    path = tmp_path / "grid.yaml"
    path.write_text("delta: [1e-8, 1.0e-5]\nadjacency: [record, 2]\n")
    grid = VISION.make_grid(read_yaml(path))
    assert grid.delta == (1e-8, 1e-5)
    assert grid.adjacency == (None, 2.0)
    assert grid.to_dict()["adjacency"] == ["record", 2.0]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"epsilom": [1]}, "unknown setting 'epsilom'; did you mean 'epsilon'?"),
        ({"metrics": ["acu"]}, "unknown metric 'acu'; did you mean 'auc'?"),
        ({"projection": ["exakt"]}, "unknown projection 'exakt'; did you mean 'exact'?"),
        ({"datasets": ["imagenet"]}, "unknown dataset 'imagenet'"),
        ({"mechanism": ["gausian"]}, "did you mean 'gaussian'?"),
        ({"options": {"aap_iteration": 3}}, "unknown option 'aap_iteration'; did you mean 'aap_iterations'?"),
        ({"options": {"aap_iterations": "many"}}, "aap_iterations must be a whole number"),
        ({"options": 3}, "options must hold 'name: value' lines"),
        ({"epsilon": [0]}, "epsilon must be from 1e-09"),
        ({"epsilon": [True]}, "epsilon must hold numbers"),
        ({"epsilon": ["nan"]}, "epsilon must hold numbers"),
        ({"delta": [1]}, "delta must be strictly between 0 and 1"),
        ({"adjacency": ["recrod"]}, "adjacency must hold 'record' or Gram radii, positive numbers. Got 'recrod'."),
        ({"adjacency": [-1]}, "adjacency must hold 'record' or Gram radii, positive numbers. Got -1."),
        ({"repeats": 0}, "repeats must be a whole number, at least 1"),
        ({"repeats": 2.5}, "repeats must be a whole number"),
        ({"seed": -1}, "seed must be a whole number, at least 0"),
        ({"experiment": "dp-fr"}, "is for 'dp-fr', not for 'gram-vision'"),
        ({"quick": []}, "quick must hold 'name: value' lines"),
    ],
)
def test_a_typo_is_one_sentence(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ss.InvalidInput) as caught:
        VISION.make_grid(changes, source="mine.yaml")
    assert words in str(caught.value)
    assert "mine.yaml" in str(caught.value)


@pytest.mark.parametrize(
    ("name", "changes", "words"),
    [
        ("dp-fr", {"delta": []}, "advantage needs at least one delta"),
        ("gram-vision", {"delta": []}, "advantage needs at least one delta"),
        ("dp-fr", {"delta": [0.5], "advantage": [0.7, 0.05]}, "must be above the first delta, 0.5"),
        ("gram-sts", {"delta": [0.05], "advantage": [0.05]}, "Got 0.05."),
        ("dp-fr", {"advantage": [1e-12]}, "advantage must be strictly between 1e-09 and 1"),
        ("dp-fr", {"epsilon": [10**400]}, "epsilon must hold numbers"),
        ("dp-fr", {"options": {"public": 3}}, "public must hold 'name: value' lines"),
        ("dp-fr", {"options": {"public": {"dlib": 3}}}, "public.dlib must hold 'name: value' lines"),
        ("dp-fr", {"options": {"public": {"dlip": {}}}}, "unknown entry of public 'dlip'; did you mean 'dlib'?"),
        ("dp-fr", {"options": {"public": {"dlib": {"acept": 0.5}}}}, "did you mean 'accept'?"),
        ("dp-fr", {"options": {"public": {"dlib": {"range": 3}}}}, "public.dlib.range must be [a, b]"),
        ("dp-fr", {"options": {"public": {"dlib": {"range": [1, 0]}}}}, "public.dlib.range must be [a, b]"),
        ("dp-fr", {"options": {"public": {"dlib": {"range": [0, "x"]}}}}, "public.dlib.range must hold numbers"),
        ("dp-fr", {"options": {"public": {"dlib": {"accept": 2}}}}, "public.dlib.accept must be strictly between"),
        ("dp-fr", {"options": {"scores_per_side": 1}}, "scores_per_side must be a whole number, at least 2"),
        ("dp-rag", {"options": {"public": {"threshold": "hi"}}}, "public.threshold must hold numbers"),
        ("dp-rag", {"options": {"public": {"range": None}}}, "public.range must be [a, b]"),
        ("gram-vision", {"options": {"device": "gpu"}}, "device must be cpu, torch, cuda or a GPU as cuda:1"),
        ("gram-vision", {"options": {"device": 3}}, "device must be cpu, torch"),
        ("runtime", {"options": {"seconds": -1}}, "seconds must be positive"),
    ],
)
def test_experiment_cannot_run_sentence(name: str, changes: dict[str, object], words: str) -> None:
    """What an experiment cannot run is one sentence."""
    with pytest.raises(ss.InvalidInput, match=r"mine\.yaml") as caught:
        EXPERIMENTS[name].make_grid(changes, source="mine.yaml")
    assert words in str(caught.value)


def test_advantage_without_delta_pure() -> None:
    """An advantage without delta is for pure mechanisms."""
    grid = EXPERIMENTS["dp-fr"].make_grid({"delta": [], "mechanism": ["laplace"], "advantage": [0.5]})
    assert {cell.setting for cell in EXPERIMENTS["dp-fr"].list_cells(grid)} == {"clean", "contract", "advantage"}
    # Just above what delta gives, there is a budget to spend.
    grid = EXPERIMENTS["dp-fr"].make_grid({"delta": [0.05], "advantage": [0.05 + 2e-9], "mechanism": ["gaussian"]})
    (cell,) = [cell for cell in EXPERIMENTS["dp-fr"].list_cells(grid) if cell.advantage and cell.repeat == 0][:1]
    assert find_cell_epsilon(cell) > 1e-9


def test_public_knowledge_changed_entry() -> None:
    """Public knowledge is changed entry by entry."""
    shipped = EXPERIMENTS["dp-fr"].make_grid().options["public"]
    changes = {"options": {"public": {"dlib": {"range": ["7e-1", 1]}, "mobileface": {"accept": 0.3}}}}
    changed = EXPERIMENTS["dp-fr"].make_grid(changes).options["public"]
    assert changed["dlib"] == {"range": [0.7, 1.0], "accept": shipped["dlib"]["accept"]}
    assert changed["mobileface"] == {"accept": 0.3}
    assert changed["faceres"] == shipped["faceres"]
    assert EXPERIMENTS["dp-fr"].make_grid({"options": {"public": {}}}).options["public"] == shipped
    assert EXPERIMENTS["dp-rag"].make_grid({"options": {"public": {"threshold": 0.5}}}).options["public"] == {
        "range": [0.0, 0.8], "threshold": 0.5,
    }  # fmt: skip
    assert VISION.make_grid({"options": {"device": "cuda:1"}}).options["device"] == "cuda:1"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("epsilon: [1, 2", "line 1"),
        ("a: b: c", "is not valid YAML"),
        ("- 1\n- 2", "must be a list of 'name: value' lines"),
        ("", "must be a list of 'name: value' lines"),
        ("epsilon: !!python/object/apply:os.system ['true']", "is not valid YAML"),
    ],
)
def test_what_is_not_a_grid_is_rejected(text: str, words: str) -> None:
    with pytest.raises(ss.InvalidInput, match=r"x\.yaml") as caught:
        parse_yaml(text, "x.yaml")
    assert words in str(caught.value)


def test_a_missing_grid_file_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(ss.FileError, match="There is no file"):
        read_yaml(tmp_path / "no.yaml")
    (tmp_path / "bytes.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ss.InvalidInput, match="not a text file"):
        read_yaml(tmp_path / "bytes.yaml")
