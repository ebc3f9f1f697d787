"""The notebooks of examples/notebooks: they run from top to bottom, show what they say, and hold no stored output."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import scoreshield as ss

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "examples" / "notebooks").glob("*.ipynb"))
NAMES = [path.stem for path in NOTEBOOKS]

#: Runs a notebook in a Jupyter kernel: the notebook, and the folder to run in.
IN_A_KERNEL = """
import sys, nbformat
from nbclient import NotebookClient
notebook = nbformat.read(sys.argv[1], as_version=4)
nbformat.validate(notebook)
NotebookClient(notebook, timeout=300, resources={"metadata": {"path": sys.argv[2]}}).execute()
cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
print(sum(cell.execution_count is not None for cell in cells), "of", len(cells))
"""


def read_cells(path: Path) -> list[dict[str, Any]]:
    return json.loads(path.read_text(encoding="utf-8"))["cells"]


def read_sources(path: Path, kind: str) -> list[str]:
    return ["".join(cell["source"]) for cell in read_cells(path) if cell["cell_type"] == kind]


def run_plainly(name: str) -> dict[str, Any]:
    """Run the code cells of a notebook in a fresh namespace, without a kernel; return the namespace."""
    path = ROOT / "examples" / "notebooks" / f"{name}.ipynb"
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for number, source in enumerate(read_sources(path, "code"), start=1):
        exec(compile(source, f"{path.name}, code cell {number}", "exec"), namespace)
    return namespace


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder of a notebook, also for what it calls temporary."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_there_are_three_notebooks() -> None:
    assert NAMES == ["attack_and_audit", "face_matching_plan", "private_rag"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebooks_are_plain(path: Path) -> None:
    """No stored output, small cells, an install line, and links that lead somewhere."""
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert notebook["metadata"]["kernelspec"]["name"] == "python3"
    cells = read_cells(path)
    assert len({cell["id"] for cell in cells}) == len(cells)
    for cell in cells:
        assert len(cell["source"]) <= 25, f"{path.name}: a long cell: {cell['source'][0]}"
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            assert cell["execution_count"] is None
    texts = read_sources(path, "markdown")
    assert texts[0].startswith("# ")
    assert re.search(r"pip install '\.\[\w+\]' jupyter` in a checkout", texts[0])
    for target in re.findall(r"\]\(([^)\s]+)\)", "\n".join(texts)):
        assert (path.parent / target).is_file(), f"{path.name}: {target}"


def test_private_rag(capsys: pytest.CaptureFixture[str]) -> None:
    """The search finds letters about the question, and the search at epsilon 1 is stopped before the charge."""
    pytest.importorskip("sklearn", reason="the hashing embedder needs scikit-learn: pip install 'scoreshield[tasks]'")
    made = run_plainly("private_rag")
    shown = capsys.readouterr().out
    assert made["search"].worth.recall > 0.5
    assert made["account"].spent == 8
    again = [made["search"].search(made["embed"]([made["ask"](("Corby", "migraine"))])[0], k=5) for _ in range(2)]
    about = [np.mean([made["topic_of"][int(name)] == made["asked"] for name in hits.ids]) for hits in again]
    assert np.mean([made["right"], *about]) >= 0.5  # one in forty by chance; a single search may have bad luck
    assert "A recall of 0.1 is required" in shown
    assert "spent: 0.0" in shown
    assert "ScoreShield certificate" in shown
    assert "Corby" in made["prompt"]


def test_face_matching_plan(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The accept bit keeps the rates of the plan, and the plan becomes a page."""
    for module in ("jinja2", "matplotlib"):
        pytest.importorskip(module, reason=f"the page needs {module}: pip install 'scoreshield[report]'")
    made = run_plainly("face_matching_plan")
    shown = capsys.readouterr().out
    assert made["choice"].chosen.mechanism == "accept bit"
    assert abs(np.mean(made["hits"]) - made["bit"].true_match_rate) < 0.04
    false_matches = np.mean(np.delete(made["release"].noisy, 42) > made["bit"].threshold)
    assert false_matches < 0.03  # 0.01 is asked for; 999 people have a standard deviation of 0.003
    assert made["page"].is_relative_to(folder)
    assert "accept bit" in made["page"].read_text(encoding="utf-8")
    assert "hides practically nothing" in shown


def test_attack_and_audit(capsys: pytest.CaptureFixture[str]) -> None:
    """The attack succeeds on clean scores and fails on the release; the audit tells broken from honest."""
    pytest.importorskip("sklearn", reason="the audit's classifier needs scikit-learn: pip install 'scoreshield[tasks]'")
    made = run_plainly("attack_and_audit")
    shown = capsys.readouterr().out
    assert made["clean"]["best"].auc > 0.99
    for result in made["private"].values():
        assert result.auc < 0.75
    assert made["found"].broken
    assert not made["passed"].broken
    assert "The claim is broken" in shown
    assert "No violation found" in shown


def test_notebook_errors_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that calls something that is gone fails its test, and names the cell."""
    monkeypatch.delattr(ss.plan, "choose")
    with pytest.raises(AttributeError, match="choose") as caught:
        run_plainly("face_matching_plan")
    assert "face_matching_plan.ipynb, code cell 3" in str(caught.traceback[-1].path) or any(
        "code cell 3" in str(entry.path) for entry in caught.traceback
    )


@pytest.mark.parametrize("path", NOTEBOOKS, ids=NAMES)
def test_notebooks_run_in_a_kernel(path: Path, folder: Path) -> None:
    for module in ("nbclient", "ipykernel"):
        if importlib.util.find_spec(module) is None:
            pytest.skip(f"a kernel needs {module}: pip install 'scoreshield[dev]'")
    ran = subprocess.run(
        [sys.executable, "-c", IN_A_KERNEL, str(path), str(folder)],
        env=os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(folder)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-3000:]
    count = len(read_sources(path, "code"))
    assert ran.stdout.strip().endswith(f"{count} of {count}")
